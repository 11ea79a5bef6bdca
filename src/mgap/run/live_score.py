"""The live display of a run: progress, score so far, tokens per second and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from mgap.benchmarks.statistics import Counts
from mgap.benchmarks.tally import Figure, Scorer
from mgap.run.engine import RunState
from mgap.run.records import Run, RunMethod, texts_of

PAUSE = 20.0  # seconds between lines if standard error is not a terminal


class LiveScore:
    """The first figure of a task's score over all answers of a method so far, updated batch by batch."""

    def __init__(self, run: Run, scorer: Scorer) -> None:
        self.run, self.scorer = run, scorer
        self._samples = {sample.id: sample for sample in run.samples}
        self._method: RunMethod | None = None
        self._counts: dict[str, Counts] = {}  # by figure
        self._figures: dict[str, Figure] = {}
        self._counted: set[str] = set()

    def add(self, state: RunState) -> str:
        """Count the new answers; returns the score in a few words."""
        if self._method != state.method:
            self._method, self._counted = state.method, set()
            self._counts.clear()
            records = list(self.run.records(state.method).values())  # of all processes so far
        else:
            records = list(state.latest[1])
        fresh = texts_of(record for record in records if record.id not in self._counted and not record.failed)
        self._counted.update(fresh.texts)
        samples = [self._samples[name] for name in fresh.texts]
        groups = {sample.group for sample in samples}
        for group, tally in (fresh.tally(self.scorer, samples) if samples else {}).items():
            if group not in groups:  # it pools several, which are counted already
                continue
            name, figure = next(iter(tally.figures.items()))
            self._figures[name] = figure
            self._counts[name] = self._counts.get(name, np.zeros(1)) + tally.counts.sum(0)
        return ", ".join(f"{name} {self._value(name):.1f}" for name in self._counts)

    def _value(self, name: str) -> float:
        figure = self._figures[name]
        return float(figure.value(self._counts[name])) * (100 if figure.percent else 1)


class LiveDisplay(Protocol):
    """Shows a state and its score."""

    def __call__(self, state: RunState, score: str) -> None: ...


@contextmanager
def showing() -> Iterator[LiveDisplay]:
    """On a terminal one bar per method; elsewhere a line now and then, for logs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[more]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(state: RunState, score: str) -> None:
            label = state.method.label
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=state.total, more="")
            bars.update(tasks[label], completed=state.done, more=_details(state, score))

        yield show


class _Lines:
    """Prints a line now and then, and when a method is done."""

    def __init__(self) -> None:
        self._last = -PAUSE

    def __call__(self, state: RunState, score: str) -> None:
        now = time.monotonic()
        if state.done < state.total and now - self._last < PAUSE:
            return
        self._last = now
        print(f"{state.method.label}: {state.done} of {state.total}; {_details(state, score)}", file=sys.stderr, flush=True)


def _details(state: RunState, score: str) -> str:
    parts = [score] if score else []
    if state.seconds > 0:
        parts.append(f"{state.tokens / state.seconds:.0f} tokens/s")
    if state.seconds_left:
        parts.append(f"{_duration(state.seconds_left)} left")
    if state.failed:
        parts.append(f"{state.failed} failed")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
