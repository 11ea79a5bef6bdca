"""What a constant shift of yes against no would have answered, from plain decoding's log-odds: methods at its recall.

A shift moves a model along its own curve of precision and recall, so a method is compared with it at one point of that curve.
Every shift is a threshold on the log-odds. Questions with equal log-odds turn together; between two thresholds true and false
positives are interpolated linearly. In each resample of the pictures the shift is found anew. Where several thresholds have the
recall, the one with the fewest false positives is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mgap.benchmarks.pope.scorer import FIGURES, predicted_yes
from mgap.benchmarks.statistics import Counts, draw, drawn_weights, share
from mgap.benchmarks.tally import Difference, Tally, by_group
from mgap.types import Sample

CHUNK = 100  # resamples at a time: [CHUNK, questions] numbers are in memory
Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class AtEqual:
    """A method's precision beside that of shifted plain decoding, where both have the same recall or share of yes."""

    precision: float
    shifted: float
    shift: float | None  # of yes against no; None: one that says yes to nothing
    difference: Difference  # the method minus shifted plain decoding; paired bootstrap over pictures

    @property
    def is_better(self) -> bool:
        """Whether the interval lies above 0."""
        return self.difference.low > 0


@dataclass(frozen=True)
class ShiftCurve:
    """The questions of one group in the order in which a growing shift turns them to yes."""

    samples: tuple[Sample, ...]
    truth: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]  # [n] whether it is yes, from the highest log-odds to the lowest
    picture: Indices  # [n] indices, as `by_picture` has them
    ends: Indices  # [levels] the last question of each distinct log-odds
    levels: Counts  # [levels] those log-odds, descending

    @classmethod
    def of(cls, samples: Sequence[Sample], log_odds: Mapping[str, float]) -> ShiftCurve:
        """From plain decoding's log-odds by sample."""
        ordered = tuple(sorted(samples, key=lambda sample: -log_odds[sample.id]))
        index = {name: number for number, name in enumerate(dict.fromkeys(sample.image for sample in samples))}
        odds = np.array([log_odds[sample.id] for sample in ordered])
        ends = np.append(np.flatnonzero(np.diff(odds)), len(odds) - 1)
        truth, picture = [sample.truth == "yes" for sample in ordered], [index[sample.image] for sample in ordered]
        return cls(ordered, np.array(truth), np.array(picture), ends, odds[ends])

    def points(self, weights: Counts) -> tuple[Counts, Counts]:
        """True and false positives [draws, 1 + levels], if a picture counts as often as `weights` [draws, pictures] say.

        The first point says yes to nothing.
        """
        each: Counts = weights[:, self.picture]  # [draws, n]
        none = np.zeros((len(weights), 1))
        hits, wrong = (np.hstack([none, (each * of).cumsum(-1)[:, self.ends]]) for of in (self.truth, ~self.truth))
        return hits, wrong

    def nearest(self, yes: int) -> dict[str, str]:
        """The answers, by sample, at the threshold whose number of yes is nearest."""
        counts = np.append(0, self.ends + 1)
        said = counts[np.abs(counts - yes).argmin()]
        return {sample.id: "yes" if place < said else "no" for place, sample in enumerate(self.samples)}

    def beside(self, tallies: Mapping[str, Tally]) -> dict[str, dict[str, AtEqual]]:
        """By method, at equal `recall` and at equal `yes_ratio`; the tallies are of these questions."""
        weights = drawn_weights(len(next(iter(tallies.values())).pictures))
        drawn = {label: draw(tally.counts) for label, tally in tallies.items()}
        resampled: dict[tuple[str, str], list[Counts]] = {}
        for start in range(0, len(weights), CHUNK):
            span = slice(start, start + CHUNK)
            points = self.points(weights[span])
            for label, counts in drawn.items():
                for held, (precision, _) in _at_equal(points, counts[span]).items():
                    resampled.setdefault((label, held), []).append(precision)
        points, found = self.points(np.ones_like(weights[:1])), dict[str, dict[str, AtEqual]]()
        for label, tally in tallies.items():
            total = tally.counts.sum(0, keepdims=True)
            ours, value = FIGURES["precision"].value(drawn[label]), float(FIGURES["precision"].value(total)[0])
            for held, (precision, point) in _at_equal(points, total).items():
                low, high = np.quantile(ours - np.concatenate(resampled[label, held]), [0.025, 0.975])
                shifted, last = float(precision[0]), int(point[0])
                difference = Difference(value - shifted, float(low), float(high))
                shift = -float(self.levels[last - 1]) if last else None
                found.setdefault(label, {})[held] = AtEqual(value, shifted, shift, difference)
        return found


def _at_equal(points: tuple[Counts, Counts], counts: Counts) -> dict[str, tuple[Counts, Indices]]:
    """The precision [draws] of shifted plain decoding at a method's recall and share of yes, and the point that it ends in."""
    hits, wrong = points
    yes, same_recall = predicted_yes(counts), counts[..., 0]
    extra, at_recall = _interpolate(hits, same_recall, wrong)
    right, at_yes = _interpolate(hits + wrong, yes, hits)
    return {"recall": (share(same_recall, same_recall + extra), at_recall), "yes_ratio": (share(right, yes), at_yes)}


def _interpolate(held: Counts, target: Counts, other: Counts) -> tuple[Counts, Indices]:
    """`other` [draws] where `held` [draws, points], which never falls, first reaches `target` [draws]; and that point."""
    point = (held < target[:, None]).sum(-1)
    at, rows = np.maximum(point, 1), np.arange(len(held))
    before, after = held[rows, at - 1], held[rows, at]
    part = share(target - before, after - before)
    return other[rows, at - 1] + part * (other[rows, at] - other[rows, at - 1]), point


def cross_picked(samples: Sequence[Sample], log_odds: Mapping[str, float]) -> tuple[dict[str, str], tuple[float, float]]:
    """The answers under a shift that is picked on other pictures, and both shifts: every second picture picks for the rest.

    Picked is the highest F1, averaged over the groups; of equal ones the smallest shift.
    """
    number = {name: index for index, name in enumerate(dict.fromkeys(sample.image for sample in samples))}
    halves = [[sample for sample in samples if number[sample.image] % 2 == half] for half in (0, 1)]
    shifts = pick_shift(halves[1], log_odds), pick_shift(halves[0], log_odds)
    answers = {
        sample.id: "yes" if log_odds[sample.id] + shift > 0 else "no"
        for half, shift in zip(halves, shifts, strict=True)
        for sample in half
    }
    return answers, shifts


def pick_shift(samples: Sequence[Sample], log_odds: Mapping[str, float]) -> float:
    """The shift of yes against no with the highest F1, averaged over the groups of these samples; 0 without any."""
    levels = np.unique([log_odds[sample.id] for sample in samples])
    shifts = np.append(0.0, -(levels[1:] + levels[:-1]) / 2)
    f1 = np.zeros(len(shifts))
    for members in by_group(samples).values():
        truth = np.array([sample.truth == "yes" for sample in members])
        odds = np.array([log_odds[sample.id] for sample in members])
        hits, wrong = (len(of) - np.searchsorted(np.sort(of), -shifts, side="right") for of in (odds[truth], odds[~truth]))
        f1 += share(2 * hits.astype(float), (hits + wrong + truth.sum()).astype(float))
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(shifts[best[np.abs(shifts[best]).argmin()]])
