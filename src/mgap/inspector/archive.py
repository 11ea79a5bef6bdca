"""The runs below one folder: which there are, and the scores of one of them. A name that is not on the list is not read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from mgap.errors import CorruptFile, MgapError, RunError, one_line
from mgap.reports.scores import Scores, score
from mgap.run.records import ANALYSES, ANSWERS, ORDER, RUN, SAMPLES, Run, RunMethod

DEPTH = 3  # folders below the root that are looked into
Stamp = tuple[tuple[str, int, int], ...]  # files with their times and sizes: another one, another state of the run


@dataclass(frozen=True)
class Entry:
    """One run on the list."""

    name: str  # its folder, from the root on; "." where the root is a run itself
    called: str  # the same to be read
    made: str  # when, in UTC
    about: str  # benchmark and model, or that it cannot be read


@dataclass(frozen=True)
class Opened:
    """A run that was read and scored."""

    name: str
    scores: Scores
    digests: dict[str, str]  # of the pictures that were shown to the model, by name, as far as records have them

    @property
    def run(self) -> Run:
        return self.scores.run

    @property
    def called(self) -> str:
        """Its name to be read."""
        return _called(self.run.folder, self.name)

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
        """Newest first; a run inside a run's folder is no entry, and links are not followed."""
        found = [_entry(self.root, folder) for folder in _run_folders(self.root)]
        return sorted(found, key=lambda entry: entry.made, reverse=True)

    def folder(self, name: object) -> Path:
        if not isinstance(name, str) or name not in {entry.name for entry in self.entries()}:
            raise RunError(f"{str(name)[:80]!r} is not among the runs of {self.root}: choose one from the list, or refresh it")
        return self.root / name

    def run(self, name: object) -> Run:
        """Without its scores."""
        folder = self.folder(name)
        with reading(folder):
            return Run.load(folder)

    def open(self, name: object) -> Opened:
        """Read and scored, with what it was planned with; kept as long as its files stay as they are."""
        folder = self.folder(name)
        return _opened(folder, str(name), _stamp(folder))


def is_pocket(run: Run) -> bool:
    return str(run.plan["benchmark"]["name"]).startswith("pocket-")


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Inside the block, files that are not what a run's are end in a sentence."""
    try:
        yield
    except MgapError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as error:
        said = f"{type(error).__name__}: {one_line(error, 120)}"
        raise CorruptFile(f"{folder}: damaged, or still being written ({said}); try again, or choose another run") from error


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
        changed = (folder / RUN).stat().st_mtime_ns
    except OSError:  # it was removed meanwhile
        changed = 0
    made, about = _told(folder / RUN, changed)
    return Entry(name, _called(folder, name), made, about)


def _called(folder: Path, name: str) -> str:
    return folder.resolve().name if name == "." else name


@lru_cache(maxsize=1024)
def _told(path: Path, changed: int) -> tuple[str, str]:
    """When a run was made, and what it is about, from its run.json as it was changed last."""
    when = datetime.fromtimestamp(changed / 1e9, timezone.utc)
    try:
        plan: Any = json.loads(path.read_text(encoding="utf-8"))
        made = datetime.fromisoformat(str(plan["created"])) if "created" in plan else when
        said = f"{plan['benchmark']['name']}, {plan.get('model', {}).get('name', 'unknown model')}"
        return _minute(made), said
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return _minute(when), "cannot be read"


def _minute(when: datetime) -> str:
    return when.astimezone(timezone.utc).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def _stamp(folder: Path) -> Stamp:
    read = [folder / name for name in (RUN, SAMPLES, ORDER)]
    read += sorted((folder / ANSWERS).glob("*/*.jsonl")) + sorted((folder / ANALYSES).glob("*.json"))
    with reading(folder):
        states = [(path, path.stat()) for path in read if path.exists()]
    return tuple((str(path), state.st_mtime_ns, state.st_size) for path, state in states)


@lru_cache(maxsize=4)
def _opened(folder: Path, name: str, stamp: Stamp) -> Opened:  # noqa: ARG001 - another stamp, another run to read
    with reading(folder):
        run = Run.load(folder)
        scores = score(run)
        records = run.records(scores.results[scores.baseline].arm)
        images = {sample.id: sample.image for sample in run.samples}
        digests = {images[key]: record.image for key, record in records.items() if key in images and record.image}
        return Opened(name, scores, digests)
