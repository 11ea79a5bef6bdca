"""Figures as functions of per-picture counts, so that all share one way to compute intervals and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from mgap.benchmarks.statistics import Counts, Rate, draw, mcnemar, wilson
from mgap.errors import SettingError
from mgap.types import Sample

Key = TypeVar("Key")


@dataclass(frozen=True)
class Figure:
    """One figure of a table: a function of summed counts."""

    value: Callable[[Counts], Counts]  # summed counts [..., columns] to the figure [...]
    of: Callable[[Counts], float]  # the denominator; 0: the figure is undefined
    percent: bool = True  # a share, shown in percent; False: a plain number, such as words per caption
    better: str = "higher"  # or "lower", or "" if neither
    full: float | None = None  # the most points that a plain number can reach; None: it is not counted in points
    over: str = "pictures"  # what the bootstrap draws


@dataclass(frozen=True)
class Tally:
    """What each picture adds to the counts, and the figures computed from them."""

    pictures: tuple[str, ...]
    counts: Counts  # [pictures, columns]
    figures: Mapping[str, Figure]
    right: Mapping[str, bool]  # by sample: the answer is right, or the description has no hallucination
    unparsed: int = 0  # answers that say neither yes nor no
    pairs: Mapping[str, bool] = field(default_factory=dict)  # samples that count as pairs: all of a pair are right

    def rates(self) -> dict[str, Rate]:
        """Every figure with a 95% interval from a bootstrap over pictures; Wilson's if a share or points are none or all."""
        total, drawn = self.counts.sum(0), draw(self.counts)
        rates = {}
        for name, figure in self.figures.items():
            of, value = figure.of(total), float(figure.value(total))
            full = 1.0 if figure.percent else figure.full
            if of == 0:
                rates[name] = Rate(0.0, 0.0, 1.0, 0)
            elif full and value in (0.0, full):
                bounds = wilson(round(value / full * of), round(of))
                rates[name] = Rate(value, full * bounds.low, full * bounds.high, bounds.of)
            else:
                low, high = np.quantile(figure.value(drawn), [0.025, 0.975])
                rates[name] = Rate(value, float(low), float(high), round(of))
        return rates


@dataclass(frozen=True)
class Difference:
    """A figure of one method minus that of another, on the same pictures."""

    value: float
    low: float  # of the 95% interval
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether the interval contains 0."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True)
class PairedComparison:
    """One method against another on the same samples."""

    differences: dict[str, Difference]  # by figure; paired bootstrap over pictures
    gained: int  # samples that only this method got right
    lost: int  # samples that only the other method got right
    p: float  # of McNemar's exact test of gained against lost
    pairs: tuple[int, int] | None = None  # gained and lost, where samples count as pairs


def compare(this: Tally, other: Tally) -> PairedComparison:
    """Compare two methods; both tallies must have the same samples."""
    if this.pictures != other.pictures or this.right.keys() != other.right.keys():
        raise SettingError("the two methods answered different samples: compare them on those that both answered")
    ours, theirs = draw(this.counts), draw(other.counts)  # the same draws of pictures
    differences = {}
    for name, figure in this.figures.items():
        low, high = np.quantile(figure.value(ours) - figure.value(theirs), [0.025, 0.975])
        value = float(figure.value(this.counts.sum(0)) - figure.value(other.counts.sum(0)))
        differences[name] = Difference(value, float(low), float(high))
    gained, lost = _changed(this.right, other.right)
    pairs = _changed(this.pairs, other.pairs) if this.pairs else None
    return PairedComparison(differences, gained, lost, mcnemar(gained, lost), pairs)


def _changed(this: Mapping[str, bool], other: Mapping[str, bool]) -> tuple[int, int]:
    """How many are right here only, and there only."""
    gained = sum(right and not other[name] for name, right in this.items())
    return gained, sum(other[name] and not right for name, right in this.items())


def rank(values: Mapping[Key, float]) -> list[Key]:
    """The keys from the highest value to the lowest. Values that differ by rounding alone are equal; the first goes first."""
    return sorted(values, key=lambda key: -round(values[key], 12))


def by_group(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples of each group, in order of appearance."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return groups


def by_picture(samples: Sequence[Sample], rows: Sequence[Sequence[float]]) -> tuple[tuple[str, ...], Counts]:
    """The pictures in order of appearance, and the sum of their samples' rows."""
    index = {name: i for i, name in enumerate(dict.fromkeys(sample.image for sample in samples))}
    counts = np.zeros((len(index), len(rows[0]) if rows else 0))
    for sample, row in zip(samples, rows, strict=True):
        counts[index[sample.image]] += row
    return tuple(index), counts


class Scorer(Protocol):
    """Turns the answers to a task into tallies; a frozen dataclass whose fields are its settings.

    It may have a `remark`: a sentence that stands below its tables.
    """

    @classmethod
    def of(cls, lexicon: Mapping[str, Any], **settings: Any) -> Scorer:
        """From the benchmark's lexicon and settings such as parser=... and language=...; refuses unknown settings."""
        ...

    def settings(self) -> dict[str, Any]:
        """The settings needed to repeat a score, as plain JSON."""
        ...

    def tally(self, samples: Sequence[Sample], texts: Mapping[str, str]) -> dict[str, Tally]:
        """Tallies by group, in the order of the samples; `texts` maps each sample's id to its answer."""
        ...


@runtime_checkable
class CaptionScorer(Scorer, Protocol):
    """A scorer of captions. Its setting `unfinished` says what becomes of a last sentence that a limit cut off."""

    @property
    def unfinished(self) -> str:
        """keep, or drop."""
        ...

    def is_caption(self, sample: Sample) -> bool:
        """Whether a sample asks for a caption, not a question."""
        ...

    def tally(self, samples: Sequence[Sample], texts: Mapping[str, str], whole: Collection[str] = ()) -> dict[str, Tally]:
        """`whole` has the ids of answers that the model ended itself, which `drop` leaves as they are."""
        ...
