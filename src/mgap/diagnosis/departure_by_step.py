"""How many tokens of whole answers were decoded from states that have left those of normal decoding, from recorded distances.

A picture adds the steps of its answers and those that have departed, so that long answers count for as many steps as they have
and intervals are from a bootstrap over pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mgap.benchmarks.statistics import Counts, share
from mgap.benchmarks.tally import Figure, Tally, by_picture
from mgap.diagnosis.departure_tally import MeasuredDepartures, measured
from mgap.types import Sample

OWN = "own"  # instead of a strength: what a method without such a setting finds for every token
STEPS, ANSWERS, DISTANCE = "steps", "answers", "distance"  # groups of figures: departed steps, answers with one, mean d_k
PLACES = {"step 1": (1, 1), "steps 2 to 5": (2, 5), "steps 6 to 10": (6, 10), "steps 11 to 20": (11, 20),
          "steps 21 to 50": (21, 50), "steps 51 on": (51, 1 << 30)}  # fmt: skip

Along = Mapping[str, Sequence[float]]  # by strength, as written: "0", "0.25", or "own"; a distance for every step


def mean_of(strength: str) -> str:
    """The name of the figure that is the mean distance at a strength."""
    return f"distance at {strength}"


def along_tallies(samples: Sequence[Sample], records: Iterable[MeasuredDepartures], tau: float) -> dict[str, Tally]:
    """By group: the share of departed steps, of answers with one, the mean distance, and the share by place in the answer.

    Figures are named by strength. A sample is right where no step has departed at the last strength.
    """
    found = measured_along(records)
    judged = [sample for sample in samples if sample.id in found]
    strengths = list(next(iter(found.values()), ()))

    def tally(count: Callable[[Sequence[float]], tuple[float, float]], name: Callable[[str], str], *, percent: bool) -> Tally:
        """`count` says of an answer how much it adds to a figure, and to what it is out of."""
        rows = [[number for key in strengths for number in count(found[sample.id][key])] for sample in judged]
        pictures, counts = by_picture(judged, rows)
        figures = {
            name(key): Figure(partial(_share, at=2 * n), partial(_of, at=2 * n), percent, better="lower")
            for n, key in enumerate(strengths)
        }
        return Tally(pictures, counts, figures, right)

    def departed(first: int, last: int) -> Callable[[Sequence[float]], tuple[float, float]]:
        return lambda steps: (sum(d > tau for d in steps[first - 1 : last]), len(steps[first - 1 : last]))

    right = {sample.id: all(d <= tau for d in found[sample.id][strengths[-1]]) for sample in judged}
    longest = max((len(steps) for one in found.values() for steps in one.values()), default=0)
    tallies = {
        STEPS: tally(departed(1, longest), str, percent=True),
        ANSWERS: tally(lambda steps: (float(any(d > tau for d in steps)), 1.0), str, percent=True),
        DISTANCE: tally(lambda steps: (sum(steps), len(steps)), mean_of, percent=False),
    }
    places = {name: place for name, place in PLACES.items() if place[0] <= longest}
    return tallies | {name: tally(departed(*place), str, percent=True) for name, place in places.items()}


def departed_by_step(records: Iterable[MeasuredDepartures], tau: float) -> dict[str, list[tuple[int, int, int]]]:
    """By strength, (step, departed, of) for every step that some answer has; steps from 1."""
    counts: dict[str, list[tuple[int, int, int]]] = {}
    for found in measured_along(records).values():
        for strength, steps in found.items():
            along = counts.setdefault(strength, [])
            along.extend((n, 0, 0) for n in range(len(along) + 1, len(steps) + 1))
            for place, distance in enumerate(steps):
                step, departed, of = along[place]
                along[place] = (step, departed + (distance > tau), of + 1)
    return counts


def measured_along(records: Iterable[MeasuredDepartures]) -> dict[str, Along]:
    """The distances along the answer of every sample that has them."""
    return measured(records, "distances")


def _share(counts: Counts, at: int) -> Counts:
    return share(counts[..., at], counts[..., at + 1])


def _of(total: Counts, at: int) -> float:
    return float(total[at + 1])
