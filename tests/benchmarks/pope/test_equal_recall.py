"""What a constant shift would have answered: by hand, with ties, and where nothing and where something is left of a method."""

import numpy as np
import pytest

from mgap.benchmarks.pope.equal_recall import ShiftCurve, cross_picked, pick_shift
from mgap.benchmarks.pope.scorer import tally_verdicts
from mgap.types import Sample

# log-odds and truth; B, C and G turn together
BY_HAND = {
    "A": (3, "yes"),
    "B": (2, "no"),
    "C": (2, "yes"),
    "G": (2, "yes"),
    "D": (1, "no"),
    "E": (0.5, "yes"),
    "F": (-1, "no"),
}


def asked(table, group="random"):
    samples = [Sample(name, f"{name}.png", f"{name}?", group, truth) for name, (_, truth) in table.items()]
    return samples, {name: float(odds) for name, (odds, _) in table.items()}


def tally(samples, yes):
    verdicts = ["yes" if sample.id in yes else "no" for sample in samples]
    return tally_verdicts(samples, verdicts, verdicts)


def beside(table, yes):
    samples, odds = asked(table)
    return ShiftCurve.of(samples, odds).beside({"method": tally(samples, yes)})["method"]


def drawn(count, seed=0):
    """Questions, two a picture, whose log-odds tell the truth but for noise."""
    rng = np.random.default_rng(seed)
    samples = [Sample(str(n), f"{n // 2}.png", "?", "random", ("yes", "no")[n % 2]) for n in range(count)]
    return samples, {s.id: float(rng.normal(1.0 if s.truth == "yes" else -0.5)) for s in samples}


def test_equal_recall_by_hand_interpolates_between_thresholds_and_moves_ties_together():
    found = beside(BY_HAND, {"A", "C"})  # recall 1/2: half of the way from (1, 0) to (3, 1) true and false positives
    assert found["recall"].precision == 1.0
    assert found["recall"].shifted == pytest.approx(2 / 2.5)
    assert found["recall"].difference.value == pytest.approx(0.2)
    assert found["yes_ratio"].shifted == pytest.approx((1 + 2 / 3) / 2)
    assert (found["recall"].shift, found["yes_ratio"].shift) == (-2.0, -2.0)


def test_the_recall_of_a_threshold_gives_its_own_precision_and_of_several_the_one_with_the_fewest_false_positives():
    assert beside(BY_HAND, {"A", "B", "C", "G"})["recall"].shifted == pytest.approx(3 / 4)
    wide = beside(BY_HAND, {"A", "B", "C", "D", "G"})  # as the threshold 1 answers: its recall is that of the threshold 2
    assert (wide["recall"].precision, wide["recall"].shifted) == (pytest.approx(3 / 5), pytest.approx(3 / 4))
    assert wide["yes_ratio"].difference.value == 0


def test_a_method_that_says_yes_to_nothing_or_to_all_has_a_point_too():
    assert (beside(BY_HAND, set())["recall"].shifted, beside(BY_HAND, set())["recall"].shift) == (0.0, None)
    everything = beside(BY_HAND, set(BY_HAND))
    assert (everything["yes_ratio"].shifted, everything["yes_ratio"].shift) == (pytest.approx(4 / 7), 1.0)
    assert everything["recall"].shifted == pytest.approx(4 / 6)


@pytest.mark.parametrize("shift", [-1.2, 0.0, 0.7])
def test_nothing_is_left_of_a_method_that_is_a_shift(shift):
    samples, odds = drawn(400)
    found = ShiftCurve.of(samples, odds).beside({"m": tally(samples, {name for name, of in odds.items() if of + shift > 0})})[
        "m"
    ]
    assert found["yes_ratio"].difference.value == found["yes_ratio"].difference.low == found["yes_ratio"].difference.high == 0
    assert found["recall"].difference.high <= 0
    assert not found["recall"].is_better
    assert not found["yes_ratio"].is_better


def test_something_is_left_of_a_method_that_sees_more():
    samples, odds = drawn(400)
    truth = {s.id: s.truth for s in samples}
    seen = {name for name, of in odds.items() if of + (0.8 if truth[name] == "yes" else -0.8) > 0}
    found = ShiftCurve.of(samples, odds).beside({"m": tally(samples, seen)})["m"]
    assert all(found[held].is_better and found[held].difference.value > 0.1 for held in ("recall", "yes_ratio"))


def test_an_interval_finds_the_shift_anew_in_each_resample():
    samples, odds = drawn(40)
    yes = {name for name in odds if int(name) % 3}  # knows nothing
    found = ShiftCurve.of(samples, odds).beside({"m": tally(samples, yes)})["m"]["recall"]
    rng_weights = np.random.default_rng(0).multinomial(20, np.full(20, 1 / 20), size=2000)
    differences = []
    for weights in rng_weights:  # the slow way: the resampled questions as questions of their own
        rows = [(s, f"{s.id}/{n}") for s in samples for n in range(weights[int(s.id) // 2])]
        again = [Sample(name, s.image, "?", "random", s.truth) for s, name in rows]
        at = {name: odds[s.id] for s, name in rows}
        ours = [(s.truth == "yes", s.id in yes) for s, _ in rows]
        hits, said = sum(t and y for t, y in ours), sum(y for _, y in ours)
        before = after = (0, 0)
        for level in sorted(set(at.values()), reverse=True):
            before, after = after, tuple(sum(at[s.id] >= level and s.truth == word for s in again) for word in ("yes", "no"))
            if after[0] >= hits:
                break
        wrong = before[1] + (after[1] - before[1]) * (hits - before[0]) / max(1, after[0] - before[0])
        differences.append(hits / said - (hits / (hits + wrong) if hits else 0.0))
    low, high = np.quantile(differences, [0.025, 0.975])
    assert (found.difference.low, found.difference.high) == (pytest.approx(low), pytest.approx(high))


def test_the_nearest_threshold_answers_whole_questions():
    samples, odds = asked(BY_HAND)
    curve = ShiftCurve.of(samples, odds)
    assert [sum(said == "yes" for said in curve.nearest(yes).values()) for yes in (0, 1, 2, 3, 5, 7)] == [0, 1, 1, 4, 5, 7]
    assert {name for name, said in curve.nearest(4).items() if said == "yes"} == {"A", "B", "C", "G"}


def test_the_picked_shift_has_the_highest_mean_f1_and_of_equal_ones_the_smallest():
    samples, odds = asked(BY_HAND)
    assert pick_shift(samples, odds) == 0.0, "E, the last yes, is above 0: plain decoding is best"
    lower = {name: of - 4 for name, of in odds.items()}
    assert pick_shift(samples, lower) == pytest.approx(4.25), "between E and F, at -3.5 and -5"
    assert pick_shift([], {}) == 0.0


def test_a_shift_is_picked_on_other_pictures_than_those_it_answers():
    samples, odds = drawn(200)
    answers, (first, second) = cross_picked(samples, odds)
    halves = [[s for s in samples if int(s.id) // 2 % 2 == half] for half in (0, 1)]
    assert (first, second) == (pick_shift(halves[1], odds), pick_shift(halves[0], odds))
    assert first != second
    for half, shift in zip(halves, (first, second), strict=True):
        assert all(answers[s.id] == ("yes" if odds[s.id] + shift > 0 else "no") for s in half)
    other = {**odds, **{s.id: 9.0 for s in halves[0]}}
    assert cross_picked(samples, other)[1][0] == first, "its own half has no part in it"
