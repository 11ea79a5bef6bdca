"""How long a user of the inspector waits: from a click to the first token and to whole answers, and after moving a slider.

    python bench/inspector.py [--rounds 10]

It runs a real `mgap inspect` on the pocket models and a real Chromium. Times are the browser's, in milliseconds: median and
worst.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

QUESTIONS = ("What color is the banana?", "Is there a refrigerator in the image?", "Describe this image.")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
DONE = "[...document.querySelectorAll('#answers .answer-column')].every(c => c.dataset.state === 'done')"
TOKEN = "document.querySelector('#answers button.token')"
LATER = """([act, is_there]) => new Promise((resolve) => {
  const began = performance.now(), there = new Function('return ' + is_there);
  const look = () => there() ? resolve(performance.now() - began) : requestAnimationFrame(look);
  new Function(act)();
  setTimeout(look, 0);
})"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    args = options.parse_args()
    if args.chromium is None:
        options.error("no Chromium was found: name one with --chromium")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        started = time.monotonic()
        with log.open("wb") as file:
            words = ["inspect", "--port", "0", "--no-open", "--runs", folder]
            server = subprocess.Popen([sys.executable, "-m", "mgap.cli.main", *words], stdout=file, stderr=file)
        try:
            address = wait_for(log, server)
            print(f"until the page is served: {time.monotonic() - started:.1f} s; {os.cpu_count()} cores")
            measure(address, args.rounds, args.chromium)
        finally:
            server.terminate()
            server.wait(20)


def wait_for(log: Path, server: subprocess.Popen[bytes]) -> str:
    while server.poll() is None:
        if match := re.search(r"mgap inspect: (http://\S+)", log.read_text(errors="replace")):
            return match[1]
        time.sleep(0.1)
    raise SystemExit(log.read_text(errors="replace"))


def measure(address: str, rounds: int, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=chromium, args=FLAGS).new_page()
        page.goto(address)
        page.locator("#ask-button").wait_for()

        def later(act: str, is_there: str) -> float:
            return float(page.evaluate(LATER, [act, is_there]))

        for question in QUESTIONS:
            page.locator("#question textarea").fill(question)
            firsts, wholes = [], []
            for _ in range(rounds):
                remove_answers(page.evaluate)
                firsts.append(later("document.querySelector('#ask-button').click()", TOKEN))
                page.wait_for_function(DONE)
                page.wait_for_timeout(600)  # cards and figures
                remove_answers(page.evaluate)
                wholes.append(later("document.querySelector('#ask-button').click()", f"{TOKEN} && {DONE}"))
                page.wait_for_timeout(600)
            print(
                f"{question} vanilla and mgap. First token: {describe_times(firsts)}. Both answers: {describe_times(wholes)}."
            )
        delays = []
        for number in range(rounds):
            alpha = 0.3 + 0.05 * number
            page.locator("#alpha input[type=number]").fill(f"{alpha:.2f}")
            started = time.perf_counter()
            page.locator("#alpha input[type=number]").press("Enter")
            page.wait_for_function(f"document.querySelector('#answers').innerText.includes('\u03b1 {alpha:g},')")
            delays.append(1000 * (time.perf_counter() - started))
            page.wait_for_timeout(600)
        print(f"Slider to redrawn answer: {describe_times(delays)}.")


def remove_answers(evaluate: Callable[[str], object]) -> None:
    """Remove the current answers from the page, so that new ones can be detected."""
    evaluate("document.querySelectorAll('#answers .answer-column').forEach(c => c.remove())")


def describe_times(times: list[float]) -> str:
    return f"{statistics.median(times):.0f} ms, at worst {max(times):.0f}"


if __name__ == "__main__":
    main()
