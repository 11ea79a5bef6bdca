"""Run work in forked processes, each in its own copy of the source tree, where files can change: for mutation.py."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from mutants import Mutant

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mgap"
SHARED = ROOT.parent / "shared"


class Copies:
    """Copies of the source tree, one per process, in which one file can be changed."""

    def __init__(self, count: int, tests: Path) -> None:
        self.home, self.changed = Path(tempfile.mkdtemp(prefix="mutation-")), dict[int, str]()
        for number in range(count):
            tree = self.tree(number)
            shutil.copytree(ROOT, tree, symlinks=True, copy_function=_copy, ignore=shutil.ignore_patterns(".*", "site", "runs"))
            if tests != ROOT / "tests":
                shutil.rmtree(tree / "tests")
                shutil.copytree(tests, tree / "tests", copy_function=_copy)
            if SHARED.is_dir():
                (tree.parent / "shared").symlink_to(SHARED)

    def tree(self, number: int) -> Path:
        return self.home / str(number) / "tree"

    def change(self, number: int, mutant: Mutant) -> None:
        """Apply this mutant to a copy, and undo the previous one."""
        before = self.changed.pop(number, "")
        if before:
            self._write(number, before, (SOURCE / before).read_bytes())
        self._write(number, mutant.file, mutant.apply((SOURCE / mutant.file).read_bytes()))
        self.changed[number] = mutant.file

    def _write(self, number: int, file: str, content: bytes) -> None:
        path = self.tree(number) / "src" / "mgap" / file
        path.write_bytes(content)

    def remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def _copy(source: str, target: str) -> None:
    """Copy code, so that it can be edited meanwhile; link the rest, such as weights."""
    try:
        (shutil.copy2 if source.endswith(".py") else os.link)(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def run_apart(
    jobs: int, tasks: Iterable[Any], start: Callable[[int, Any, Path], tuple[Callable[[], None], float]]
) -> Iterator[Any]:
    """Run every task in its own forked process, `jobs` at a time; yields (task, its answer, or None if it was killed)."""
    fork, waiting = multiprocessing.get_context("fork"), list(tasks)[::-1]
    free, running = list(range(jobs)), dict[Any, Any]()
    answers = Path(tempfile.mkdtemp(prefix="mutation-answers-"))
    while waiting or running:
        while waiting and free:
            number, task = free.pop(), waiting.pop()
            path = answers / str(number)
            path.unlink(missing_ok=True)
            work, limit = start(number, task, path)
            process = fork.Process(target=_begin, args=(work,))
            process.start()
            running[process.sentinel] = (process, number, task, path, time.monotonic() + limit)
        wait(list(running), timeout=1.0)
        for sentinel, (process, number, task, path, end) in list(running.items()):
            if process.is_alive() and time.monotonic() < end:
                continue
            if process.pid:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with processes that a test left behind
            process.join()
            del running[sentinel]
            free.append(number)
            yield task, json.loads(path.read_text()) if path.exists() else None
    shutil.rmtree(answers)


def _begin(work: Callable[[], None]) -> None:
    os.setpgid(0, 0)
    with open(os.devnull, "a") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    work()
    os._exit(0)


def enter(tree: Path) -> None:
    """Switch this process to a copy: imports, child processes and relative paths use it."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path[:] = [
        str(tree / "src"),
        str(tree),
        *(p for p in sys.path if Path(p).resolve() not in (ROOT, ROOT / "src", ROOT / "bench")),
    ]
