"""How many tokens of whole answers were decoded from departed states, from recorded distances.

Each picture contributes the number of steps of its answers and the number of departed ones. So an answer counts by its length,
and intervals come from a bootstrap over pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mgap.benchmarks.statistics import Counts, share
from mgap.benchmarks.tally import Figure, Tally, by_picture
from mgap.diagnosis.departure_tally import MeasuredDepartures, recorded_distances
from mgap.types import Sample

OWN = "own"  # in place of a strength, for methods that set their own at every token
STEPS, ANSWERS, DISTANCE = "steps", "answers", "distance"  # groups of figures: departed steps, answers with one, mean d_k
STEP_RANGES = {"step 1": (1, 1), "steps 2 to 5": (2, 5), "steps 6 to 10": (6, 10), "steps 11 to 20": (11, 20),
          "steps 21 to 50": (21, 50), "steps 51 on": (51, 1 << 30)}  # fmt: skip

StepDistances = Mapping[str, Sequence[float]]  # the distance at every step, by strength as written: "0", "0.25", or "own"


def distance_name(strength: str) -> str:
    """The name of the mean distance at a strength."""
    return f"distance at {strength}"


def tallies_by_step(samples: Sequence[Sample], records: Iterable[MeasuredDepartures], tau: float) -> dict[str, Tally]:
    """By group: the share of departed steps, the share of answers with one, the mean distance, and the share by step range.

    Figures are named by strength. A sample counts as right if no step has departed at the last strength.
    """
    distances = _step_distances(records)
    judged = [sample for sample in samples if sample.id in distances]
    strengths = list(next(iter(distances.values()), ()))

    def tally(count: Callable[[Sequence[float]], tuple[float, float]], name: Callable[[str], str], *, percent: bool) -> Tally:
        """`count` returns what an answer adds to the numerator and to the denominator of a figure."""
        rows = [[number for key in strengths for number in count(distances[sample.id][key])] for sample in judged]
        pictures, counts = by_picture(judged, rows)
        figures = {
            name(key): Figure(partial(_share, at=2 * n), partial(_of, at=2 * n), percent, better="lower")
            for n, key in enumerate(strengths)
        }
        return Tally(pictures, counts, figures, right)

    def departed(first: int, last: int) -> Callable[[Sequence[float]], tuple[float, float]]:
        return lambda steps: (sum(d > tau for d in steps[first - 1 : last]), len(steps[first - 1 : last]))

    right = {sample.id: all(d <= tau for d in distances[sample.id][strengths[-1]]) for sample in judged}
    longest = max((len(steps) for by_strength in distances.values() for steps in by_strength.values()), default=0)
    tallies = {
        STEPS: tally(departed(1, longest), str, percent=True),
        ANSWERS: tally(lambda steps: (float(any(d > tau for d in steps)), 1.0), str, percent=True),
        DISTANCE: tally(lambda steps: (sum(steps), len(steps)), distance_name, percent=False),
    }
    ranges = {name: (first, last) for name, (first, last) in STEP_RANGES.items() if first <= longest}
    return tallies | {name: tally(departed(*ends), str, percent=True) for name, ends in ranges.items()}


def departed_by_step(records: Iterable[MeasuredDepartures], tau: float) -> dict[str, list[tuple[int, int, int]]]:
    """By strength, (step, departed, of) for every step that some answer has; steps count from 1."""
    counts: dict[str, list[tuple[int, int, int]]] = {}
    for distances in _step_distances(records).values():
        for strength, steps in distances.items():
            by_step = counts.setdefault(strength, [])
            by_step.extend((n, 0, 0) for n in range(len(by_step) + 1, len(steps) + 1))
            for index, distance in enumerate(steps):
                step, departed, of = by_step[index]
                by_step[index] = (step, departed + (distance > tau), of + 1)
    return counts


def _step_distances(records: Iterable[MeasuredDepartures]) -> dict[str, StepDistances]:
    """The distances of every sample that has them."""
    return recorded_distances(records, "distances")


def _share(counts: Counts, at: int) -> Counts:
    return share(counts[..., at], counts[..., at + 1])


def _of(total: Counts, at: int) -> float:
    return float(total[at + 1])
