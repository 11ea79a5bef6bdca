"""Figures of the representation analysis (MGAP paper) with 95% intervals, and one full measurement as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mgap.benchmarks.statistics import Counts, Rate, share
from mgap.benchmarks.tally import Figure, Tally, by_picture
from mgap.diagnosis.shift import Terms
from mgap.errors import CorruptFile
from mgap.types import Sample

SHARES = frozenset({"held", "holds", "contains"})  # always within 0..1, so 0 and 1 get Wilson's interval


def figures(samples: Sequence[Sample], terms: Terms) -> dict[str, Rate]:
    """By name, the sum of the first term divided by that of the second, with a bootstrap over the samples' pictures.

    Terms have one row per sample. Rows whose second term is 0 are left out; `of` counts the others.
    """
    return {name: _figure(name, samples, part.tolist(), whole.tolist()) for name, (part, whole) in terms.items()}


def _figure(name: str, samples: Sequence[Sample], part: Sequence[float], whole: Sequence[float]) -> Rate:
    rows = [(sample, (p, w, 1.0)) for sample, p, w in zip(samples, part, whole, strict=True) if w > 0]
    if not rows:
        return Rate(0.0, 0.0, 1.0, 0)
    pictures, counts = by_picture([sample for sample, _ in rows], [row for _, row in rows])
    figure = Figure(_quotient, lambda total: float(total[2]), percent=name in SHARES, better="")
    return Tally(pictures, counts, {name: figure}, {}).rates()[name]


def _quotient(counts: Counts) -> Counts:
    return share(counts[..., 0], counts[..., 1])


@dataclass(frozen=True)
class Line:
    """The figures of one method at one strength; for the oracle also the reference and the group of states."""

    method: str
    strength: float
    figures: Mapping[str, Rate]
    reference: str = ""  # teacher or aligned, or their controls: other step, other answer
    group: str = ""  # right, wrong or apart


@dataclass(frozen=True)
class Representation:
    """One measurement: shifts by method and strength, Theorem 1 by reference and group, and the size of each group."""

    model: str
    width: int  # d
    rank: int  # K of the subspace that shifts are split by
    bank: int  # states
    k: int  # neighbours averaged into an aligned reference
    counts: Mapping[str, int]  # questions answered right, wrong or unclear; caption steps that agree or are apart
    shifts: tuple[Line, ...]
    oracle: tuple[Line, ...]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Representation:
        try:
            lines = {key: tuple(_line(line) for line in data[key]) for key in ("shifts", "oracle")}
            counts = {str(key): int(value) for key, value in data["counts"].items()}
            return cls(**{**data, **lines, "counts": counts, "notes": tuple(data["notes"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"not a measured representation ({error!r}); measure it again") from error


def _line(data: Mapping[str, Any]) -> Line:
    return Line(**{**data, "figures": {name: Rate(**rate) for name, rate in data["figures"].items()}})
