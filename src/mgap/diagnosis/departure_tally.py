"""How many states have departed from plain decoding (MGAP paper, table of off-manifold samples), from recorded distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from mgap.benchmarks.statistics import Counts, share
from mgap.benchmarks.tally import Figure, Tally, by_picture
from mgap.errors import BenchmarkError
from mgap.types import Sample


class MeasuredDepartures(Protocol):
    """A record of a run: distances under extra["distance"], or the failure."""

    @property
    def id(self) -> str: ...

    @property
    def extra(self) -> Mapping[str, Any]: ...

    @property
    def failed(self) -> str: ...


def departure_tally(samples: Sequence[Sample], records: Iterable[MeasuredDepartures], tau: float) -> Tally:
    """The share of states farther than tau at each strength, counted by picture; figures are named by strength.

    Failed samples are left out. A sample counts as right if its state has not departed at the last strength.
    """
    distances = recorded_distances(records)
    judged = [sample for sample in samples if sample.id in distances]
    strengths = list(next(iter(distances.values()), ()))
    rows = [[1.0, *(float(distances[sample.id][strength] > tau) for strength in strengths)] for sample in judged]
    pictures, counts = by_picture(judged, rows)
    figures = {
        strength: Figure(partial(_departed, column=column), lambda total: float(total[0]), better="lower")
        for column, strength in enumerate(strengths, start=1)
    }
    right = {sample.id: not row[-1] for sample, row in zip(judged, rows, strict=True)}
    return Tally(pictures, counts, figures, right)


def recorded_distances(records: Iterable[MeasuredDepartures], key: str = "distance") -> dict[str, Any]:
    """The values under `key` by strength, for every sample; refuses records that lack it or differ in their strengths."""
    distances: dict[str, Any] = {}
    for record in records:
        if record.failed:
            continue
        if key not in record.extra:
            raise BenchmarkError(f"the record of {record.id} has no {_MISSING[key]}")
        distances[record.id] = record.extra[key]
        if list(distances[record.id]) != list(next(iter(distances.values()))):
            raise BenchmarkError(f"the record of {record.id} has other strengths than those before it: measure all alike")
    return distances


_MISSING = {
    "distance": "distance: it is an answer, not a departure",
    "distances": "distances along an answer: measure with along: answers",
}


def _departed(counts: Counts, column: int) -> Counts:
    return share(counts[..., column], counts[..., 0])
