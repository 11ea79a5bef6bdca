"""Commands as a reader types them: in bash, in the page's folder. A server is waited for until it answers, and stopped."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from reading import Command

LONGEST = 900.0  # seconds; a safety net, not a measure
ADDRESS = {"inspect": r"mgap inspect: (http://\S+)", "serve": r"Starting vLLM server on (http://\S+)"}
REFUSED = re.compile(r"mgap: (?!warning: )")  # how a refusal begins; a page that shows one means it
CHANGED = "\0"  # among what a block printed: not what the page shows, for a flag was added
TABLE = "│┃┏┡└"  # a row of one: the words of the third likeliest token change with the processor
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
STOPPED = 128 + signal.SIGPIPE  # `yes | head`: the first is told that nobody reads on
JOBS = "for job in $(jobs -p); do wait $job; done"


class Failed(Exception):
    """A command that did not do what the page says; the message holds its last lines."""


def execute(
    command: Command,
    folder: Path,
    env: Mapping[str, str],
    added: Mapping[str, str],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Run it; raises Failed unless it succeeds, or is refused in the page's own words. `meanwhile` a server is up."""
    script, log = "\n".join(["set -eo pipefail", *_functions(added), command.text, JOBS, ""]), folder / ".log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        verb = server(command)
        if verb:
            wait_for(process, log, ADDRESS[verb])
            if meanwhile is not None:
                meanwhile()
            os.killpg(process.pid, signal.SIGINT)
        status = process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        raise Failed(f"still running after {LONGEST:.0f} s\n{tail(log)}") from None
    finally:
        _kill(process)
    status = 0 if status == STOPPED else status
    if verb:
        if verb == "inspect":  # how vLLM ends is its own business
            _check_end(log)
    elif bool(status) != bool(REFUSED.match(command.said)):
        raise Failed(f"exit status {status}\n{tail(log)}")
    printed = _keep(command, log, folder / ".block", is_changed=bool(added or verb))
    if command.said and CHANGED not in printed:
        _compare(command.said, printed)


def server(command: Command) -> str:
    """Which server it starts, if it does."""
    for program, *words in command.simple:
        if program in ("mgap", "vllm") and words[:1] and words[0] in ADDRESS and "--dry-run" not in words:
            return words[0]
    return ""


def wait_for(process: subprocess.Popen[bytes], log: Path, address: str) -> str:
    """Until the server that says its address in the log answers there, be it that it asks for a password."""
    until = time.monotonic() + LONGEST
    while time.monotonic() < until and process.poll() is None:
        if said := re.search(address, log.read_text(errors="replace")):
            try:
                urllib.request.urlopen(said[1].replace("0.0.0.0", "127.0.0.1"), timeout=5).close()
                return said[1]
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500:
                    return said[1]
            except OSError:
                pass
        time.sleep(0.1)
    raise Failed(f"no server answered\n{tail(log)}")


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def _functions(added: Mapping[str, str]) -> list[str]:
    return [f'{program}() {{ command {program} "$@" {flags}; }}' for program, flags in added.items()]


def _check_end(log: Path) -> None:
    """A server that is stopped by Ctrl-C leaves without a traceback."""
    if "Traceback" in log.read_text(errors="replace"):
        raise Failed(f"the server did not end well\n{tail(log)}")


def _keep(command: Command, log: Path, block: Path, *, is_changed: bool) -> str:
    """What its block has printed so far."""
    before = "" if command.begins else block.read_text() if block.exists() else CHANGED  # those before were skipped
    block.write_text(before + (CHANGED if is_changed else log.read_text(errors="replace")))
    return block.read_text()


def _compare(said: str, printed: str) -> None:
    """What the page shows must have been printed, line by line and in its order; `...` stands for lines left out."""
    lines = iter(printed.splitlines())
    for shown in filter(None, map(str.strip, said.splitlines())):
        if shown == "..." or shown[0] in TABLE:
            continue
        if not any(_is_alike(shown, line.strip()) for line in lines):
            raise Failed(f"it did not print {shown!r}, or not in this order\n{printed[-3000:]}")


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
