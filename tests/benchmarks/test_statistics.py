"""Intervals: Wilson's as scipy has it, the bootstrap as the normal approximation has it where that holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from mgap.benchmarks.statistics import Rate, bootstrap, share, wilson


@given(st.integers(1, 5000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_wilson_is_scipys(trial):
    hits, of = trial
    rate, expected = wilson(hits, of), binomtest(hits, of).proportion_ci(method="wilson")
    assert (rate.low, rate.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert rate.low - 1e-12 <= rate.value <= rate.high + 1e-12


def test_nothing_counted_may_be_anything():
    assert wilson(0, 0) == bootstrap(lambda c: c[..., 0], np.zeros((0, 2)), 0) == Rate(0.0, 0.0, 1.0, 0)


def test_a_rate_prints_in_percent():
    assert str(Rate(0.5, 0.251, 0.7549, 9)) == "50.0 [25.1, 75.5]"


def accuracy(counts):
    return share(counts[..., 0], counts[..., 1])


def test_the_bootstrap_of_independent_trials_is_near_wilson():
    hits = np.random.default_rng(1).random(1000) < 0.3
    groups = np.column_stack([hits, np.ones(1000)]).astype(float)
    found, expected = bootstrap(accuracy, groups, 1000), wilson(int(hits.sum()), 1000)
    assert found.value == expected.value
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.006)


def test_answers_that_stand_and_fall_together_count_once():
    hits = (np.random.default_rng(1).random(200) < 0.3).astype(float)
    each = bootstrap(accuracy, np.column_stack([hits, np.ones(200)]), 200)
    six = bootstrap(accuracy, np.column_stack([6 * hits, np.full(200, 6.0)]), 1200)
    assert (six.value, six.low, six.high) == (each.value, each.low, each.high)


def test_the_bootstrap_is_reproducible():
    groups = np.column_stack([np.arange(20) % 3 == 0, np.ones(20)]).astype(float)
    assert bootstrap(accuracy, groups, 20) == bootstrap(accuracy, groups, 20)


@pytest.mark.parametrize("hits", [0.0, 1.0])
def test_the_bootstrap_is_not_certain_of_what_never_varied(hits):
    groups = np.column_stack([np.full(20, hits), np.ones(20)])
    assert bootstrap(accuracy, groups, 20) == wilson(int(20 * hits), 20)


def test_one_answer_is_counted():
    assert bootstrap(accuracy, np.array([[1.0, 1.0]]), 1) == wilson(1, 1)


def test_a_share_of_nothing_is_zero():
    assert share(np.array([1.0, 0.0]), np.array([2.0, 0.0])).tolist() == [0.5, 0.0]
