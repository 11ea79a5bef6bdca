"""Time `mgap VERB --help` for every verb: one process each, in turns, in milliseconds of wall clock and of CPU.

    python bench/help.py [--rounds 15]

For comparison, the least that any verb costs: Python alone, and Python with Typer, which parses the command line.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from typing import Any

import typer
from measure import column, in_turns, spread, table

from mgap.cli.main import app

BASE = {"(python alone)": ["-c", "pass"], "(import typer)": ["-c", "import typer"]}


def verbs() -> list[list[str]]:
    """The words of every command and subcommand; the empty list is `mgap` itself."""

    def walk(command: Any, words: list[str]) -> list[list[str]]:
        children = getattr(command, "commands", {})
        return [words, *(path for name in children for path in walk(children[name], [*words, name]))]

    return walk(typer.main.get_command(app), [])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=15)
    rounds = options.parse_args().rounds
    helps = {" ".join(["mgap", *words]): ["-m", "mgap.cli.main", *words, "--help"] for words in verbs()}
    used: dict[str, list[float]] = {name: [] for name in (*BASE, *helps)}

    def call(name: str, words: list[str]) -> None:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used[name].append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))

    ways = {name: lambda name=name, words=words: call(name, words) for name, words in {**BASE, **helps}.items()}
    for way in ways.values():
        way()  # warms the file cache
    for times in used.values():
        times.clear()
    taken = in_turns(ways, rounds, clock=milliseconds, label="help")
    rows = [(name, spread(column(taken, name)).text(0), spread(used[name]).text(0)) for name in ways]
    cores = f"{os.cpu_count()} cores"
    print(
        f"{time.strftime('%Y-%m-%d')}, {cores}, python {platform.python_version()}, typer {version('typer')}; {rounds} rounds"
    )
    print(table(["--help of", "wall clock, ms", "processor, ms"], rows))


def milliseconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
