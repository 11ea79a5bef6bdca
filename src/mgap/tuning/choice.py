"""Which setting of a grid to take: by labels, or without them by a criterion that is stated beforehand.

- labels: the best mean over splits of F1, or of accuracy.
- departure: the farthest step along alpha that leaves no more states outside than is allowed; of several paths the longest.

Every criterion is a figure of counts that pictures add to, so that intervals and paired differences come as for any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from mgap.benchmarks.pope.scorer import FIGURES, outcomes, question_count
from mgap.benchmarks.statistics import Counts, Rate, share
from mgap.benchmarks.tally import Difference, Figure, Tally, by_picture, compare
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.errors import SettingError
from mgap.tuning.sweep import Point
from mgap.types import Sample

RULES = ("departure", "labels")
OBJECTIVES = ("f1", "accuracy")
VERDICTS = ("yes", "no", None)
_OUTCOMES = 6  # columns of `outcomes`

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True)
class SettingChoice:
    """The settings in the order of a rule, by their place in the grid; those that it does not consider are not among them."""

    order: tuple[int, ...]  # best first
    leaders: tuple[int, ...]  # of those that give the very same answers the first only
    alike: int  # others that give the same answers as the best

    @property
    def picked(self) -> int:
        return self.order[0]

    @property
    def runner_up(self) -> int | None:
        """The best that answers otherwise; None: there is none."""
        return self.leaders[1] if len(self.leaders) > 1 else None


@dataclass(frozen=True)
class SettingFigures:
    """What is known of one setting on the judged questions."""

    point: Point
    step: float  # the mean of |h_cut - h|
    departed: Tally  # over states
    labels: Tally | None
    turned: Mapping[str, int]  # answers that differ from plain decoding's, such as "yes to no"
    value: float | None = None  # what a rule orders by; None: it does not consider this one

    def rates(self) -> dict[str, Rate]:
        return {**({} if self.labels is None else self.labels.rates()), **self.departed.rates()}

    def less(self, other: SettingFigures) -> dict[str, Difference]:
        """Paired differences on the same pictures."""
        found = compare(self.departed, other.departed).differences
        if self.labels is None or other.labels is None:
            return found
        return {**compare(self.labels, other.labels).differences, **found}

    def to_json(self) -> dict[str, Any]:
        rates = {name: [rate.value, rate.low, rate.high] for name, rate in self.rates().items()}
        return {**self.point.to_json(), "value": self.value, "step": self.step, **rates, "turned": dict(self.turned)}


def kinds_of(words: Sequence[str]) -> list[int]:
    """The place among `VERDICTS` of what each word says as an answer, as POPE is scored."""
    return [VERDICTS.index(yes_or_no(word)) for word in words]


def choose(values: dict[int, float], points: Sequence[Point], steps: Sequence[float], said: Array) -> SettingChoice:
    """The highest value; of equal ones the smaller mean step, then the smaller settings. `said` is [points, n]."""

    def key(place: int) -> tuple[float, ...]:
        point = points[place]
        return -round(values[place], 12), round(steps[place], 12), point.alpha, point.rank, point.lam

    order = tuple(sorted(values, key=key))
    answers = [said[place].tobytes() for place in order]
    leaders = dict(zip(reversed(answers), reversed(order), strict=True))  # the first of each stays
    return SettingChoice(order, tuple(sorted(leaders.values(), key=order.index)), answers.count(answers[0]) - 1)


def label_values(samples: Sequence[Sample], said: Array, objective: str = "f1") -> dict[int, float]:
    """For each row of `said` [points, samples], the mean over the samples' groups."""
    if objective not in OBJECTIVES:
        raise SettingError(f"objective={objective!r}: choose from {', '.join(OBJECTIVES)}")
    groups = list(_groups(samples).values())
    labels = [[samples[place].truth for place in members] for members in groups]
    found = {}
    for point, row in enumerate(said):
        counts = [
            outcomes(truth, [VERDICTS[row[place]] for place in members]).sum(0)
            for members, truth in zip(groups, labels, strict=True)
        ]
        found[point] = float(FIGURES[objective].value(np.stack(counts)).mean())
    return found


def label_tally(samples: Sequence[Sample], said: Array) -> Tally:
    """POPE's figures, each as its mean over the groups, of one row of answers [samples]."""
    groups = {group: place for place, group in enumerate(_groups(samples))}
    verdicts = [VERDICTS[kind] for kind in said]
    rows = np.zeros((len(samples), len(groups), _OUTCOMES))
    rows[np.arange(len(samples)), [groups[s.group] for s in samples]] = outcomes([s.truth for s in samples], verdicts)
    pictures, counts = by_picture(samples, rows.reshape(len(samples), -1).tolist())
    figures = {
        name: Figure(partial(_mean, figure.value, len(groups)), lambda c: float(question_count(c.reshape(-1, _OUTCOMES)).sum()))
        for name, figure in FIGURES.items()
    }
    right = {sample.id: verdict == sample.truth for sample, verdict in zip(samples, verdicts, strict=True)}
    return Tally(pictures, counts, figures, right, sum(verdict is None for verdict in verdicts))


def _mean(value: Callable[[Counts], Counts], groups: int, counts: Counts) -> Counts:
    found: Counts = value(counts.reshape(*counts.shape[:-1], groups, _OUTCOMES)).mean(-1)
    return found


def _groups(samples: Sequence[Sample]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(place)
    return groups


def departed_tally(samples: Sequence[Sample], departed: Array) -> Tally:
    """The share of states outside, from whether each one is; a sample is right where it is not."""
    pictures, counts = by_picture(samples, [[1.0, float(gone)] for gone in departed])
    figure = Figure(lambda c: share(c[..., 1], c[..., 0]), lambda c: float(c[..., 0]), better="lower")
    right = {sample.id: not gone for sample, gone in zip(samples, departed, strict=True)}
    return Tally(pictures, counts, {"departed": figure}, right)


def farthest(
    points: Sequence[Point], share_outside: Callable[[int], float], limit: float, told: Callable[[int, int], None] | None = None
) -> dict[int, float]:
    """Along each path, alpha ascending, the last point before the share of states outside first exceeds the limit.

    Points stand path by path, as a grid gives them. What is given back are those points' places, with their shares.
    """
    paths = [list(places) for _, places in groupby(range(len(points)), key=lambda place: points[place].path)]
    stayed = {}
    for done, path in enumerate(paths, start=1):
        found: tuple[int, float] | None = None
        for place in path:
            outside = share_outside(place)
            if outside > limit:
                break
            found = place, outside
        if found is not None:
            stayed[found[0]] = found[1]
        if told is not None:
            told(done, len(paths))
    return stayed


def turned(before: Array, after: Array) -> dict[str, int]:
    """How many answers [n] became others, such as "yes to no"."""
    names = ("yes", "no", "neither")
    pairs = [(one, two) for one in range(3) for two in range(3) if one != two]
    counts = {f"{names[one]} to {names[two]}": int(np.sum((before == one) & (after == two))) for one, two in pairs}
    return {name: count for name, count in counts.items() if count}
