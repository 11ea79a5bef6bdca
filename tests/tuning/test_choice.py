"""The rules that choose a setting: what each one takes, how ties fall, and what their figures are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.errors import SettingError
from mgap.tuning.choice import (
    VERDICTS,
    choose,
    count_changes,
    departed_tally,
    farthest_points,
    label_tally,
    label_values,
    verdict_indices,
)
from mgap.tuning.sweep import Grid, Point
from mgap.types import Sample
from tests.benchmarks.labelled import score_labels

SAMPLES = [
    Sample(f"{group}/{n}", f"{n // 2}.png", f"Is there {n % 4}?", group, "yes" if n % 2 else "no")
    for group in ("random", "popular")
    for n in range(12)
]
rows = st.lists(st.integers(0, 2), min_size=len(SAMPLES), max_size=len(SAMPLES))


def test_words_are_read_as_pope_reads_answers():
    assert [VERDICTS[kind] for kind in verdict_indices(["Yes", "no", "No.", "The", "", "not"])] == [
        "yes",
        "no",
        "no",
        None,
        None,
        "no",
    ]


@given(rows)
def test_values_of_labels_are_means_over_the_splits_of_popes_own_figures(row):
    said = np.array([row])
    for objective in ("f1", "accuracy"):
        by_split = []
        for group in ("random", "popular"):
            places = [place for place, sample in enumerate(SAMPLES) if sample.group == group]
            score = score_labels(
                [SAMPLES[p].truth for p in places], [VERDICTS[row[p]] for p in places], [SAMPLES[p].image for p in places]
            )
            by_split.append(getattr(score, objective).value)
        expected = sum(by_split) / 2
        assert label_values(SAMPLES, said, objective)[0] == pytest.approx(expected)
        tally = label_tally(SAMPLES, said[0])
        assert float(tally.figures[objective].value(tally.counts.sum(0))) == pytest.approx(expected)
    assert label_tally(SAMPLES, said[0]).unparsed == row.count(2)


def test_an_unknown_objective_is_refused():
    with pytest.raises(SettingError, match="objective='recall'"):
        label_values(SAMPLES, np.zeros((1, len(SAMPLES)), dtype=int), "recall")


def test_of_equal_values_the_smaller_step_wins_and_the_runner_up_answers_otherwise():
    points = [Point(0.0, 0.5, 1), Point(1.0, 0.5, 1), Point(2.0, 0.5, 1), Point(3.0, 0.5, 1)]
    said = np.array([[0, 0], [0, 1], [0, 1], [1, 1]])
    found = choose({0: 0.5, 1: 0.9, 2: 0.9, 3: 0.7}, points, [0.0, 0.4, 0.3, 0.9], said)
    assert found.order == (2, 1, 3, 0)
    assert (found.picked, found.runner_up, found.alike) == (2, 3, 1)
    assert found.leaders == (2, 3, 0)
    alone = choose({0: 0.5}, points, [0.0] * 4, said)
    assert (alone.picked, alone.runner_up, alone.alike) == (0, None, 0)


def test_the_farthest_step_is_before_the_first_that_leaves_even_if_a_later_one_comes_back():
    grid = Grid.of({"alpha": [0, 1, 2, 3], "lam": [0.5, 1.0], "rank": [1]})
    points, asked = grid.points(), []
    outside = {(0.5, 0): 0.05, (0.5, 1): 0.05, (0.5, 2): 0.2, (0.5, 3): 0.0}

    def share(place):
        asked.append(points[place])
        return outside.get((points[place].lam, points[place].alpha), 0.04)

    found = farthest_points(points, share, 0.05)
    assert {(points[place].lam, points[place].alpha): value for place, value in found.items()} == {
        (0.5, 1): 0.05,
        (1.0, 3): 0.04,
    }
    assert Point(3.0, 0.5, 1) not in asked  # nobody looks behind the first that leaves


def test_departed_states_and_turned_answers_are_counted():
    tally = departed_tally(SAMPLES[:4], np.array([True, False, False, False]))
    assert tally.rates()["departed"].value == 0.25
    assert count_changes(np.array([0, 0, 1, 2, 1]), np.array([0, 1, 0, 1, 1])) == {
        "yes to no": 1,
        "no to yes": 1,
        "neither to no": 1,
    }
