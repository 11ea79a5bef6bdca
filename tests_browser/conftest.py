"""The inspector as a person meets it: `mgap inspect` in a process of its own, and a real Chromium that opens its page."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
FAILED = Path(tempfile.gettempdir()) / "mgap-browser"  # screenshots of tests that failed
STARTING = 240  # seconds that a server may take until it listens, on a busy machine

os.environ.pop("MGAP_INSPECT_PASSWORD", None)  # the tester's own
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; servers would inherit it and never end
    signal.signal(signal.SIGINT, signal.default_int_handler)


def chromium() -> str:
    """The browser's path; there is no skipping without one."""
    named = os.environ.get("MGAP_CHROMIUM")
    found = next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
    if found is None:
        pytest.exit(
            f"no Chromium for the inspector's tests: {named or ', '.join(NAMES)} cannot be found. Get one with "
            "`apt-get install chromium`, or name one by MGAP_CHROMIUM=PATH",
            returncode=1,
        )
    return found


class Served:
    """A process that serves a page: its address, which it prints as soon as it listens, and all else that it has printed."""

    def __init__(self, command: list[str], log: Path, line: str, **variables: str) -> None:
        """`line` is a pattern of the line with the address, which is its first group."""
        self.path, self._line, self._told = log, re.compile(line), SimpleQueue[str | None]()
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()
        try:
            address = self._told.get(timeout=STARTING)
        except Empty:
            address = None
        if address is None:
            self.kill()
            raise RuntimeError(f"the server has ended, or did not start within {STARTING} s\n{self.log}")
        self.address = address

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.path.open("wb", buffering=0) as log, self.process.stdout as printed:
            for line in printed:
                log.write(line)
                if said := self._line.search(line.decode(errors="replace")):
                    self._told.put(said[1])
        self._told.put(None)

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def end(self) -> int:
        """As Ctrl-C does; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(20)
        finally:
            self.kill()

    def kill(self) -> None:
        """With whatever it has started: they are a session of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reading.join()


class Server(Served):
    """A running `mgap inspect` on a free port."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self.runs = folder / "runs"
        command = [sys.executable, "-m", "mgap.cli.main", "inspect", "--port", "0", "--no-open", "--runs", str(self.runs)]
        line = r"^mgap inspect: (http://\S+) \(Ctrl-C ends it\)$"
        super().__init__([*command, *words], folder / "log.txt", line, **variables)


class Watched:
    """A page that writes down what should not happen in it: errors in its console, and requests to other hosts."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.errors, self.elsewhere = list[str](), list[str]()
        self.excused = list[str]()  # patterns of errors that a test brings about by design
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda sent: self._note(sent.url))

    def _note(self, url: str) -> None:
        if not url.startswith((f"{self.address}/", "data:", "blob:")):
            self.elsewhere.append(url)

    def check(self) -> None:
        left = [text for text in self.errors if not any(re.search(pattern, text) for pattern in self.excused)]
        assert (left, self.elsewhere) == ([], [])


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    launched = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
    yield launched
    launched.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    """One for all tests; it ends as by Ctrl-C."""
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    status = started.end()
    assert "Traceback" not in started.log, started.log
    assert status == 0, started.log


@pytest.fixture
def another(tmp_path_factory):
    """`another(*words, **variables)` starts a server with other options."""
    started = []

    def start(*words: str, **variables: str) -> Server:
        started.append(Server(tmp_path_factory.mktemp("another"), *words, **variables))
        return started[-1]

    yield start
    for each in started:
        status = each.end()
        assert "Traceback" not in each.log, each.log
        assert status == 0, each.log


@pytest.fixture
def opened(browser: Browser, request):
    """`opened(server, viewport)` opens its page in a browser of its own, watched: fails on console errors and other hosts."""
    contexts, watched = list[BrowserContext](), list[Watched]()

    def open_(at: Server, viewport: dict[str, int], **settings: Any) -> Watched:
        contexts.append(browser.new_context(viewport=viewport, **settings))
        watched.append(Watched(contexts[-1].new_page(), at.address))
        watched[-1].page.goto(at.address)
        return watched[-1]

    yield open_
    if getattr(request.node, "failed", False):
        FAILED.mkdir(exist_ok=True)
        for number, each in enumerate(watched):
            each.page.screenshot(path=FAILED / f"{request.node.name}-{number}.png", full_page=True)
        print(f"screenshots: {FAILED}")
    for context in contexts:
        context.close()
    for each in watched:
        each.check()


@pytest.fixture
def watched(opened, server) -> Watched:
    """The inspector's page on a desk, and its list of excused errors."""
    return opened(server, DESK)


@pytest.fixture
def page(watched) -> Page:
    return watched.page


@pytest.fixture
def phone(opened, server) -> Page:
    return opened(server, PHONE, has_touch=True).page


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Tells fixtures whether a test failed, and prints the server's log with it."""
    report = yield
    if call.when == "call" and report.failed:
        item.failed = True
        for used in {item.funcargs.get("server")} - {None}:
            report.sections.append(("the server's log", used.log[-6000:]))
    return report
