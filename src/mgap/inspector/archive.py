"""Lists the runs below a folder and scores one of them. Only runs on the list are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from mgap.errors import CorruptFile, MgapError, RunError, one_line
from mgap.io.strict_json import load_json
from mgap.reports.scores import Scores, score
from mgap.run.records import ANALYSES, ANSWERS, ORDER, RUN, SAMPLES, Run, RunMethod
from mgap.run.seen_pictures import digests_of

DEPTH = 3  # levels of folders below the root to search
Stamp = tuple[tuple[str, int, int], ...]  # files with modification times and sizes; it changes when the run does


@dataclass(frozen=True)
class Entry:
    """One run in the list."""

    name: str  # its folder, relative to the root; "." if the root itself is a run
    display_name: str  # the same for readers
    created: str  # in UTC
    about: str  # benchmark and model, or "cannot be read"


@dataclass(frozen=True)
class ScoredRun:
    """A run with its scores."""

    name: str
    scores: Scores
    digests: dict[str, str]  # by picture name, of what the model was shown; only those in the records

    @property
    def run(self) -> Run:
        return self.scores.run

    @property
    def display_name(self) -> str:
        """Its name for readers."""
        return _display_name(self.run.folder, self.name)

    @property
    def is_pocket(self) -> bool:
        return is_pocket(self.run)

    @property
    def has_answers(self) -> bool:
        return not self.run.plan.get("departure")

    def method(self, label: str) -> RunMethod:
        return self.scores.results[label].arm


@dataclass(frozen=True)
class Archive:
    """All run folders below a root."""

    root: Path

    def entries(self) -> list[Entry]:
        """Newest first. Runs nested in a run's folder are left out, and links are not followed."""
        entries = [_entry(self.root, folder) for folder in _run_folders(self.root)]
        return sorted(entries, key=lambda entry: entry.created, reverse=True)

    def folder(self, name: object) -> Path:
        if not isinstance(name, str) or name not in {entry.name for entry in self.entries()}:
            raise RunError(f"{str(name)[:80]!r} is not among the runs of {self.root}: choose one from the list, or refresh it")
        return self.root / name

    def run(self, name: object) -> Run:
        """Load a run without scoring it."""
        folder = self.folder(name)
        with reading(folder):
            return Run.load(folder)

    def open(self, name: object) -> ScoredRun:
        """Load and score a run; cached until its files change."""
        folder = self.folder(name)
        return _score_run(folder, str(name), _stamp(folder))


def is_pocket(run: Run) -> bool:
    return str(run.plan["benchmark"]["name"]).startswith("pocket-")


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn what malformed files raise inside the block into CorruptFile."""
    try:
        yield
    except MgapError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as error:
        detail = f"{type(error).__name__}: {one_line(error, 120)}"
        raise CorruptFile(f"{folder}: damaged, or still being written ({detail}); try again, or choose another run") from error


def _run_folders(root: Path) -> Iterator[Path]:
    for place, inner, files in os.walk(root):
        folder = Path(place)
        if RUN in files and not (folder / RUN).is_symlink():
            yield folder
            inner.clear()
        elif len(folder.relative_to(root).parts) >= DEPTH:
            inner.clear()
        else:
            inner[:] = [name for name in inner if not name.startswith(".")]


def _entry(root: Path, folder: Path) -> Entry:
    name = str(folder.relative_to(root))
    try:
        modified_ns = (folder / RUN).stat().st_mtime_ns
    except OSError:  # removed in the meantime
        modified_ns = 0
    created, about = _summarise(folder / RUN, modified_ns)
    return Entry(name, _display_name(folder, name), created, about)


def _display_name(folder: Path, name: str) -> str:
    return folder.resolve().name if name == "." else name


@lru_cache(maxsize=1024)
def _summarise(path: Path, modified_ns: int) -> tuple[str, str]:
    """When a run was created, and what it is about, from its run.json; `modified_ns` is part of the cache key."""
    when = datetime.fromtimestamp(modified_ns / 1e9, timezone.utc)
    try:
        plan: Any = load_json(path)
        created = datetime.fromisoformat(str(plan["created"])) if "created" in plan else when
        about = f"{plan['benchmark']['name']}, {plan.get('model', {}).get('name', 'unknown model')}"
        return _format_time(created), about
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return _format_time(when), "cannot be read"


def _format_time(when: datetime) -> str:
    return when.astimezone(timezone.utc).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def _stamp(folder: Path) -> Stamp:
    read = [folder / name for name in (RUN, SAMPLES, ORDER)]
    read += sorted((folder / ANSWERS).glob("*/*.jsonl")) + sorted((folder / ANALYSES).glob("*.json"))
    with reading(folder):
        states = [(path, path.stat()) for path in read if path.exists()]
    return tuple((str(path), state.st_mtime_ns, state.st_size) for path, state in states)


@lru_cache(maxsize=4)
def _score_run(folder: Path, name: str, stamp: Stamp) -> ScoredRun:  # noqa: ARG001 - the stamp is part of the cache key
    with reading(folder):
        run = Run.load(folder)
        scores = score(run)
        return ScoredRun(name, scores, digests_of(run, scores.results[scores.baseline].arm))
