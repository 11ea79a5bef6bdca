"""Commands as a reader types them: in bash, in the page's folder. A server is waited for until it answers, and stopped."""

from __future__ import annotations

import codecs
import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from reading import Command

LONGEST = 900.0  # seconds; a safety net, not a measure
LAST = 3000  # characters shown of what failed
RESTORED = """
import os, signal, sys
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(each, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""  # bash itself cannot restore a signal that is ignored when it starts, as Ctrl-C is in the background of a shell
ADDRESS = {"inspect": r"mgap inspect: (http://\S+)", "serve": r"Starting vLLM server on (http://\S+)"}
REFUSED = re.compile(r"mgap: (?!warning: )")  # how a refusal begins; a page that shows one means it
CHANGED = "\0"  # among what a block printed: not what the page shows, for a flag was added
TABLE = "│┃┏┡└"  # a row of one: the words of the third likeliest token change with the processor
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
STOPPED = 128 + signal.SIGPIPE  # `yes | head`: the first is told that nobody reads on
JOBS = "for job in $(jobs -p); do wait $job; done"


class Failed(Exception):
    """A command that did not do what the page says; the message holds its last lines."""


class Output:
    """What a process prints, errors among it: kept as it comes, and waited for."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.text, self.has_ended = "", False
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=[process.stdout], daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, until: float) -> re.Match[str] | None:
        """The first that matches; None where nobody prints any more, or at a time of `time.monotonic`."""
        with self._came:
            while True:
                if found := re.search(pattern, self.text):
                    return found
                if self.has_ended or not self._came.wait(until - time.monotonic()):
                    return None

    def wait_for_more(self, seconds: float) -> None:
        """Until something else is printed, or so long."""
        with self._came:
            self._came.wait(seconds)

    def end(self) -> str:
        """All of it, once everybody who could print has ended."""
        self._reader.join(LONGEST)
        if self._reader.is_alive():
            raise Failed(f"something that it started has not ended with it\n{self.text[-LAST:]}")
        return self.text

    def _read(self, stream: IO[bytes]) -> None:
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        with stream:
            while piece := stream.read1():
                with self._came:
                    self.text += decode(piece)
                    self._came.notify_all()
        with self._came:
            self.has_ended = True
            self._came.notify_all()


def execute(
    command: Command,
    folder: Path,
    env: Mapping[str, str],
    added: Mapping[str, str],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Run it; raises Failed unless it succeeds, or is refused in the page's own words. `meanwhile` a server is up."""
    script = "\n".join(["set -eo pipefail", *_functions(added), command.text, JOBS, ""])
    process = subprocess.Popen(
        [sys.executable, "-SEc", RESTORED, "bash", "-c", script],
        cwd=folder,
        env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output, verb = Output(process), server(command)
    try:
        if verb:
            wait_until_it_answers(process, output, ADDRESS[verb])
            if meanwhile is not None:
                meanwhile()
            os.killpg(process.pid, signal.SIGINT)
        status = process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        raise Failed(f"still running after {LONGEST:.0f} s\n{output.text[-LAST:]}") from None
    finally:
        _kill(process)
    printed, status = output.end(), 0 if status == STOPPED else status
    if verb:
        if verb == "inspect":  # how vLLM ends is its own business
            _check_end(printed)
    elif bool(status) != bool(REFUSED.match(command.said)):
        raise Failed(f"exit status {status}\n{printed[-LAST:]}")
    printed = _keep(command, printed, folder / ".block", is_changed=bool(added or verb))
    if command.said and CHANGED not in printed:
        compare(command.said, printed)


def server(command: Command) -> str:
    """Which server it starts, if it does."""
    for program, *words in command.simple:
        if program in ("mgap", "vllm") and words[:1] and words[0] in ADDRESS and "--dry-run" not in words:
            return words[0]
    return ""


def wait_until_it_answers(process: subprocess.Popen[bytes], output: Output, address: str) -> None:
    """The server that prints its address answers there, be it that it asks for a password."""
    until = time.monotonic() + LONGEST
    said = output.wait_for(address, until)
    while said and time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(said[1].replace("0.0.0.0", "127.0.0.1"), timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                return
        except OSError:
            pass
        output.wait_for_more(0.1)  # vLLM says its address long before it listens
    raise Failed(f"no server answered\n{output.text[-LAST:]}")


def _functions(added: Mapping[str, str]) -> list[str]:
    return [f'{program}() {{ command {program} "$@" {flags}; }}' for program, flags in added.items()]


def _check_end(printed: str) -> None:
    """A server that is stopped by Ctrl-C leaves without a traceback."""
    if "Traceback" in printed:
        raise Failed(f"the server did not end well\n{printed[-LAST:]}")


def _keep(command: Command, printed: str, block: Path, *, is_changed: bool) -> str:
    """What its block has printed so far."""
    before = "" if command.begins else block.read_text() if block.exists() else CHANGED  # those before were skipped
    block.write_text(before + (CHANGED if is_changed else printed))
    return block.read_text()


def compare(said: str, printed: str) -> None:
    """What the page shows must have been printed, line by line and in its order; `...` stands for lines left out."""
    lines = iter(printed.splitlines())
    for shown in filter(None, map(str.strip, said.splitlines())):
        if shown == "..." or shown[0] in TABLE:
            continue
        if not any(_is_alike(shown, line.strip()) for line in lines):
            raise Failed(f"it did not print {shown!r}, or not in this order\n{printed[-LAST:]}")


def _is_alike(shown: str, printed: str) -> bool:
    """The same words, and numbers that are close: bfloat16 rounds otherwise on another processor."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(math.isclose(float(one), float(other), rel_tol=0.05, abs_tol=0.02) for one, other in pairs)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """What is still running of the command's own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
