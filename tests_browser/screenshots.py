"""The pictures of docs/inspector.md, from the running inspector: python tests_browser/screenshots.py docs/figures/inspector

A small run is made first, whose answers the gallery and the page of runs show.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import FLAGS, Server, chromium
from playwright.sync_api import Browser, Page, expect, sync_playwright
from test_ask import LONG, ask, columns, set_knob, tokens, wait

ALPHA = 4
WIDE, PHONE = {"width": 1360, "height": 900}, {"width": 390, "height": 844}


def main(folder: Path) -> None:
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        os.chdir(place)
        server = Server(Path())
        try:
            words = ["run", "pope", "--model", "pocket/llava", "--scenes", "25", "--split", "adversarial", "--workers", "0"]
            words += ["--method", "vanilla", "--method", "mgap", "--set", f"mgap.alpha={ALPHA}"]
            words += ["--out", str(server.runs / "pocket-pope")]
            subprocess.run([sys.executable, "-m", "mgap.cli.main", *words], check=True)
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            for name, take in SHOTS.items():
                take(browser, server.address, folder / f"{name}.png")
                print(folder / f"{name}.png")
        finally:
            server.end()


def opened(browser: Browser, address: str, size: dict[str, int], scheme: str = "light") -> Page:
    page = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1.5).new_page()
    page.goto(address)
    expect(page.locator("#ask-button")).to_be_visible(timeout=LONG)
    return page


def take_answers(browser: Browser, address: str, path: Path) -> None:
    """A case that MGAP corrects, beside VCD, with the token that decides and its sweep."""
    page = opened(browser, address, WIDE)
    open_first(page, "MGAP helps")
    page.get_by_role("checkbox", name="vcd").check()
    ask(page, None, 3)
    tokens(page, "MGAP").first.click()
    expect(page.locator("#token .token-card")).to_have_attribute("data-number", "1", timeout=LONG)
    page.wait_for_timeout(1500)
    page.screenshot(path=path, full_page=True)


def take_description(browser: Browser, address: str, path: Path) -> None:
    """Three descriptions coloured by departure, in the dark."""
    page = opened(browser, address, WIDE, "dark")
    page.get_by_role("checkbox", name="vcd").check()
    ask(page, "Describe this image.", 3)
    set_knob(page, "alpha", 2)
    expect(columns(page).nth(1)).to_contain_text("\u03b1 2,", timeout=LONG)
    wait(page, 3)
    page.get_by_role("radio", name="departure").check()
    expect(page.locator("#answers .legend-name")).to_contain_text("departure", timeout=LONG)
    page.wait_for_timeout(1000)
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 1360, "height": 1120}, full_page=True)


def take_gallery(browser: Browser, address: str, path: Path) -> None:
    page = opened(browser, address, WIDE)
    page.get_by_role("tab", name="Gallery").click()
    expect(page.get_by_role("heading", name="MGAP harms")).to_be_visible(timeout=LONG)
    page.wait_for_timeout(500)
    page.screenshot(path=path, full_page=True)


def take_runs(browser: Browser, address: str, path: Path) -> None:
    page = opened(browser, address, WIDE)
    page.get_by_role("tab", name="Runs").click()
    expect(page.get_by_role("columnheader", name="F1").first).to_be_visible(timeout=LONG)
    page.get_by_role("tab", name="Answers").click()
    page.get_by_role("radio", name="changed by the method").check()
    page.wait_for_timeout(1500)
    page.screenshot(path=path, full_page=True)


def take_phone(browser: Browser, address: str, path: Path) -> None:
    page = opened(browser, address, PHONE, "dark")
    ask(page, "Describe this image.")
    page.wait_for_timeout(1000)
    columns(page).first.scroll_into_view_if_needed()
    page.screenshot(path=path)


def open_first(page: Page, heading: str) -> None:
    page.get_by_role("tab", name="Gallery").click()
    section = page.locator("section").filter(has=page.get_by_role("heading", name=heading))
    section.locator("button.card").first.click(timeout=LONG)
    wait(page, 2)


SHOTS = {
    "answers": take_answers,
    "description": take_description,
    "gallery": take_gallery,
    "runs": take_runs,
    "phone": take_phone,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
