"""How many states have left those of normal decoding (MGAP paper, table of off-manifold samples), from recorded distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from mgap.benchmarks.statistics import Counts, share
from mgap.benchmarks.tally import Figure, Tally, by_picture
from mgap.errors import BenchmarkError
from mgap.types import Sample


class MeasuredDepartures(Protocol):
    """A line of a run: distances under extra["distance"], or why there are none."""

    @property
    def id(self) -> str: ...

    @property
    def extra(self) -> Mapping[str, Any]: ...

    @property
    def failed(self) -> str: ...


def departure_tally(samples: Sequence[Sample], records: Iterable[MeasuredDepartures], tau: float) -> Tally:
    """The share farther than tau at each strength, with what every picture adds to it; the figures are named by strength.

    A sample that failed counts nowhere. One is right where its state has not departed at the last strength.
    """
    found = measured(records)
    judged = [sample for sample in samples if sample.id in found]
    strengths = list(next(iter(found.values()), ()))
    rows = [[1.0, *(float(found[sample.id][strength] > tau) for strength in strengths)] for sample in judged]
    pictures, counts = by_picture(judged, rows)
    figures = {
        strength: Figure(partial(_departed, column=column), lambda total: float(total[0]), better="lower")
        for column, strength in enumerate(strengths, start=1)
    }
    right = {sample.id: not row[-1] for sample, row in zip(judged, rows, strict=True)}
    return Tally(pictures, counts, figures, right)


def measured(records: Iterable[MeasuredDepartures], key: str = "distance") -> dict[str, Any]:
    """What every sample has under `key`, by strength; refuses records without it, and those of unlike strengths."""
    found: dict[str, Any] = {}
    for record in records:
        if record.failed:
            continue
        if key not in record.extra:
            raise BenchmarkError(f"the record of {record.id} has no {_MISSING[key]}")
        found[record.id] = record.extra[key]
        if list(found[record.id]) != list(next(iter(found.values()))):
            raise BenchmarkError(f"the record of {record.id} has other strengths than those before it: measure all alike")
    return found


_MISSING = {
    "distance": "distance: it is an answer, not a departure",
    "distances": "distances along an answer: measure with along: answers",
}


def _departed(counts: Counts, column: int) -> Counts:
    return share(counts[..., column], counts[..., 0])
