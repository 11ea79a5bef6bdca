"""Choose one setting of a grid: by labels, or without them by a criterion stated beforehand.

- labels: the highest F1 or accuracy, averaged over splits.
- departure: the farthest step along alpha with no more states outside than the limit; of several paths the longest.

Every criterion is a figure over per-picture counts, so it has the usual intervals and paired differences.
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
from mgap.benchmarks.tally import Difference, Figure, Tally, by_picture, compare, rank
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
    """Indices into the grid, ranked by a rule; settings that the rule does not consider are left out."""

    order: tuple[int, ...]  # best first
    leaders: tuple[int, ...]  # the first of each set of settings with identical answers
    alike: int  # other settings with the same answers as the best

    @property
    def picked(self) -> int:
        return self.order[0]

    @property
    def runner_up(self) -> int | None:
        """The best setting with different answers, or None."""
        return self.leaders[1] if len(self.leaders) > 1 else None


@dataclass(frozen=True)
class SettingFigures:
    """The results of one setting on the judged questions."""

    point: Point
    step: float  # the mean of |h_cut - h|
    departed: Tally  # over states
    labels: Tally | None
    turned: Mapping[str, int]  # how many answers differ from plain decoding's, by kind, such as "yes to no"
    value: float | None = None  # the value that a rule ranks by; None: the rule does not consider this setting

    def rates(self) -> dict[str, Rate]:
        return {**({} if self.labels is None else self.labels.rates()), **self.departed.rates()}

    def less(self, other: SettingFigures) -> dict[str, Difference]:
        """Paired differences on the same pictures."""
        departed = compare(self.departed, other.departed).differences
        if self.labels is None or other.labels is None:
            return departed
        return {**compare(self.labels, other.labels).differences, **departed}

    def to_json(self) -> dict[str, Any]:
        rates = {name: [rate.value, rate.low, rate.high] for name, rate in self.rates().items()}
        return {**self.point.to_json(), "value": self.value, "step": self.step, **rates, "turned": dict(self.turned)}


def verdict_indices(words: Sequence[str]) -> list[int]:
    """For each word, the index in `VERDICTS` of its verdict, parsed as for POPE."""
    return [VERDICTS.index(yes_or_no(word)) for word in words]


def choose(values: dict[int, float], points: Sequence[Point], steps: Sequence[float], verdicts: Array) -> SettingChoice:
    """Rank by value; ties go to the smaller mean step, then to the smaller settings. `verdicts` is [points, n]."""

    def size(index: int) -> tuple[float, ...]:
        point = points[index]
        return round(steps[index], 12), point.alpha, point.rank, point.lam

    order = tuple(rank({index: values[index] for index in sorted(values, key=size)}))
    answers = [verdicts[index].tobytes() for index in order]
    leaders = dict(zip(reversed(answers), reversed(order), strict=True))  # keeps the first of each
    return SettingChoice(order, tuple(sorted(leaders.values(), key=order.index)), answers.count(answers[0]) - 1)


def label_values(samples: Sequence[Sample], verdicts: Array, objective: str = "f1") -> dict[int, float]:
    """The objective's mean over the samples' groups, for each row of `verdicts` [points, samples]."""
    if objective not in OBJECTIVES:
        raise SettingError(f"objective={objective!r}: choose from {', '.join(OBJECTIVES)}")
    groups = list(_groups(samples).values())
    labels = [[samples[index].truth for index in members] for members in groups]
    values = {}
    for point, row in enumerate(verdicts):
        counts = [
            outcomes(truth, [VERDICTS[row[index]] for index in members]).sum(0)
            for members, truth in zip(groups, labels, strict=True)
        ]
        values[point] = float(FIGURES[objective].value(np.stack(counts)).mean())
    return values


def label_tally(samples: Sequence[Sample], verdicts: Array) -> Tally:
    """POPE's figures for one setting's verdicts [samples], each averaged over the groups."""
    groups = {group: index for index, group in enumerate(_groups(samples))}
    answers = [VERDICTS[verdict] for verdict in verdicts]
    rows = np.zeros((len(samples), len(groups), _OUTCOMES))
    rows[np.arange(len(samples)), [groups[s.group] for s in samples]] = outcomes([s.truth for s in samples], answers)
    pictures, counts = by_picture(samples, rows.reshape(len(samples), -1).tolist())
    figures = {
        name: Figure(partial(_mean, figure.value, len(groups)), lambda c: float(question_count(c.reshape(-1, _OUTCOMES)).sum()))
        for name, figure in FIGURES.items()
    }
    right = {sample.id: answer == sample.truth for sample, answer in zip(samples, answers, strict=True)}
    return Tally(pictures, counts, figures, right, sum(answer is None for answer in answers))


def _mean(value: Callable[[Counts], Counts], groups: int, counts: Counts) -> Counts:
    mean: Counts = value(counts.reshape(*counts.shape[:-1], groups, _OUTCOMES)).mean(-1)
    return mean


def _groups(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """The indices of the samples of each group."""
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)
    return groups


def departed_tally(samples: Sequence[Sample], departed: Array) -> Tally:
    """The share of departed states; a sample counts as right if its state has not departed."""
    pictures, counts = by_picture(samples, [[1.0, float(is_departed)] for is_departed in departed])
    figure = Figure(lambda c: share(c[..., 1], c[..., 0]), lambda c: float(c[..., 0]), better="lower")
    right = {sample.id: not is_departed for sample, is_departed in zip(samples, departed, strict=True)}
    return Tally(pictures, counts, {"departed": figure}, right)


def farthest_points(
    points: Sequence[Point],
    share_outside: Callable[[int], float],
    limit: float,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, float]:
    """On each path, the last point before the share of states outside first exceeds the limit, alpha ascending.

    Points must be ordered path by path, as `Grid.points` returns them. Returns their indices with their shares.
    """
    paths = [list(indices) for _, indices in groupby(range(len(points)), key=lambda index: points[index].path)]
    farthest = {}
    for done, path in enumerate(paths, start=1):
        last: tuple[int, float] | None = None
        for index in path:
            outside = share_outside(index)
            if outside > limit:
                break
            last = index, outside
        if last is not None:
            farthest[last[0]] = last[1]
        if progress is not None:
            progress(done, len(paths))
    return farthest


def count_changes(before: Array, after: Array) -> dict[str, int]:
    """How many verdicts [n] changed, by kind, such as "yes to no"."""
    names = ("yes", "no", "neither")
    pairs = [(one, two) for one in range(3) for two in range(3) if one != two]
    counts = {f"{names[one]} to {names[two]}": int(np.sum((before == one) & (after == two))) for one, two in pairs}
    return {name: count for name, count in counts.items() if count}
