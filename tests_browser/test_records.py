"""The gallery and the page of runs in a real browser: what is there is opened, asked again, and says the same."""

import subprocess
import sys

import pytest
from playwright.sync_api import expect
from test_ask import LONG, columns, text, tokens, wait


@pytest.fixture(scope="module")
def run(server):
    """A small run in the server's folder, strong enough to change something."""
    words = ["run", "pope", "--model", "pocket/llava", "--scenes", "8", "--split", "adversarial", "--workers", "0"]
    words += ["--method", "vanilla", "--method", "mgap", "--set", "mgap.alpha=6", "--out", str(server.runs / "strong")]
    done = subprocess.run(
        [sys.executable, "-m", "mgap.cli.main", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return server.runs / "strong"


def test_a_drawn_case_of_the_gallery_is_shown_and_asked(page):
    page.get_by_role("tab", name="Gallery").click()
    page.get_by_role("button", name="A car in the street").click()
    wait(page, 2)
    assert text(page, "vanilla").startswith("Yes")
    expect(page.locator("#question textarea")).to_have_value("Is there a car in the image?")
    expect(page.locator("#editor")).to_contain_text("traffic light")


def test_the_gallery_has_what_mgap_did_in_the_latest_run(page, run):
    page.get_by_role("tab", name="Gallery").click()
    for heading in ("MGAP helps", "MGAP does nothing", "MGAP harms"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible(timeout=LONG)
    helped = page.locator("section").filter(has=page.get_by_role("heading", name="MGAP helps")).locator("button.card")
    expect(helped.first).to_contain_text("corrected", timeout=LONG)
    said = helped.first.locator(".told span").all_inner_texts()
    helped.first.click()
    wait(page, 2)
    expect(columns(page).nth(1)).to_contain_text("\u03b1 6,")
    assert [text(page, name).split(" ")[0] for name in ("vanilla", "MGAP")] == [one.split(",")[0] for one in said]
    expect(page.locator("#answers .warn")).to_have_count(0)  # nothing says otherwise than the records
    expect(page.locator("#alpha input[type=number]")).to_have_value("6")
    tokens(page, "MGAP").first.click()
    expect(page.locator("#token .said")).to_contain_text("Plain decoding would say", timeout=LONG)


def test_a_runs_tables_are_shown_and_its_answers_filtered_and_opened(page, run):
    page.get_by_role("tab", name="Runs").click()
    expect(page.get_by_role("columnheader", name="F1").first).to_be_visible(timeout=LONG)
    page.get_by_role("tab", name="Answers").click()
    every = page.locator("button.card:visible")
    expect(every).to_have_count(12, timeout=LONG)
    page.get_by_role("radio", name="wrong before, right after").check()
    expect(every.first).to_contain_text("corrected", timeout=LONG)
    assert all("corrected" in card for card in every.all_inner_texts())
    page.get_by_role("tab", name="Facts").click()
    expect(page.get_by_text("mgap run pope").first).to_be_visible(timeout=LONG)
    page.get_by_role("tab", name="Answers").click()
    every.first.click()
    wait(page, 2)
    assert text(page, "vanilla") != text(page, "MGAP")


def test_on_a_phone_runs_and_gallery_do_not_run_off_the_side(phone, run):
    for name, shown in (("Gallery", "button.card:visible img"), ("Runs", "table:visible")):
        phone.get_by_role("tab", name=name).click()
        expect(phone.locator(".records:visible").first).to_be_visible(timeout=LONG)
        expect(phone.locator(shown).first).to_be_visible(timeout=LONG)
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
