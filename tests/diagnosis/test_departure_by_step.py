"""Departed steps counted from recorded distances: by strength, by place, and over pictures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.diagnosis.departure_by_step import STEP_RANGES, departed_by_step, tallies_by_step
from mgap.errors import BenchmarkError
from mgap.run.records import Record
from mgap.types import Sample

TAU = 2.0


def samples(count, per_picture=1):
    return [Sample(str(n), f"{n // per_picture}.png", "Describe.", "captions", []) for n in range(count)]


def line(number, **distances):
    return Record(str(number), extra={"distances": distances})


def test_steps_beyond_tau_are_counted_by_strength_and_place():
    records = [
        line(0, own=[1.0, 3.0, 2.0]),  # at tau is not beyond it
        line(1, own=[9.0]),
        line(2, own=[1.0] * 5 + [4.0]),
        Record("3", failed="no picture"),
    ]
    assert departed_by_step(records, TAU) == {
        "own": [(1, 1, 3), (2, 1, 2), (3, 0, 2), (4, 0, 1), (5, 0, 1), (6, 1, 1)],
    }
    tallies = tallies_by_step(samples(4, per_picture=2), records, TAU)
    rates = {group: {name: (rate.value, rate.of) for name, rate in tally.rates().items()} for group, tally in tallies.items()}
    assert rates == {
        "steps": {"own": (3 / 10, 10)},
        "answers": {"own": (1.0, 3)},
        "distance": {"distance at own": (pytest.approx(24 / 10), 10)},
        "step 1": {"own": (pytest.approx(1 / 3), 3)},
        "steps 2 to 5": {"own": (pytest.approx(1 / 6), 6)},
        "steps 6 to 10": {"own": (1.0, 1)},
    }
    assert tallies["steps"].pictures == ("0.png", "1.png")
    assert tallies["steps"].right == {"0": False, "1": False, "2": False}


def test_a_sample_is_right_where_no_step_departs_at_the_last_strength():
    records = [line(0, **{"0": [1.0, 1.0], "1": [3.0]}), line(1, **{"0": [9.0], "1": [2.0, 2.0]})]
    assert tallies_by_step(samples(2), records, TAU)["steps"].right == {"0": False, "1": True}


def test_records_of_something_else_are_refused():
    with pytest.raises(BenchmarkError, match="no distances along an answer"):
        departed_by_step([Record("7", "Yes", extra={"distance": {"0": 1.0}})], TAU)
    with pytest.raises(BenchmarkError, match="other strengths"):
        tallies_by_step(samples(2), [line(0, own=[1.0]), line(1, **{"0": [1.0]})], TAU)


@given(st.lists(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=70), min_size=1, max_size=6))
def test_places_and_steps_hold_every_step_once(found):
    records = [line(n, own=distances) for n, distances in enumerate(found)]
    tallies = tallies_by_step(samples(len(found)), records, TAU)
    counts = {group: tally.counts.sum(0).tolist() for group, tally in tallies.items()}
    placed = [counts[name] for name in STEP_RANGES if name in counts]
    assert [sum(column) for column in zip(*placed, strict=True)] == counts["steps"]
    by_step = departed_by_step(records, TAU)["own"]
    assert counts["steps"] == [sum(departed for _, departed, _ in by_step), sum(of for _, _, of in by_step)]
