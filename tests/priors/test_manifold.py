"""Distances to the nearest states: against every pair written out, under what must not matter, and in cases known by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mgap.errors import NonFiniteStates, SettingError
from mgap.priors import neighbours
from mgap.priors.bank import Bank
from mgap.priors.manifold import METRICS, Manifold, member_distances, neighbour_distances, threshold
from tests.reference.departure import mean_of_nearest

SQUARE = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])


def drawn(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def few_at_once(monkeypatch):
    for name, few in {"_BLOCK": 35, "_QUERIES": 20, "_PRODUCTS": 14, "_GATHERED": 100, "_COLUMNS": 2, "_MARGIN": 2}.items():
        monkeypatch.setattr(neighbours, name, few)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("k", [1, 3, 36])
@pytest.mark.usefixtures("few_at_once")
def test_distances_are_those_of_every_pair_written_out(metric, k):
    bank, states = drawn(37, 5), drawn(11, 5, seed=1)
    found = neighbour_distances(states, bank, k, metric)
    assert found.tolist() == pytest.approx([mean_of_nearest(h, bank.tolist(), k, metric) for h in states.tolist()])
    rows = bank.tolist()
    expected = [mean_of_nearest(h, rows[:n] + rows[n + 1 :], k, metric) for n, h in enumerate(rows)]
    assert member_distances(bank, k, metric).tolist() == pytest.approx(expected)


def test_a_rectangle_has_known_distances():
    assert member_distances(SQUARE, 1).tolist() == [3.0] * 4
    assert member_distances(SQUARE, 2).tolist() == [3.5] * 4
    assert member_distances(SQUARE, 3).tolist() == [4.0] * 4
    assert neighbour_distances(torch.tensor([[1.5, 2.0]]), SQUARE, 4).tolist() == [2.5]
    assert neighbour_distances(SQUARE, SQUARE, 1).tolist() == [0.0] * 4  # from elsewhere: an equal state is a neighbour


def test_cosine_distance_sees_directions_only():
    bank = torch.tensor([[1.0, 0.0], [0.0, 5.0], [-2.0, 0.0]])
    assert neighbour_distances(torch.tensor([[7.0, 0.0]]), bank, 3, "cosine").tolist() == pytest.approx([1.0])  # 0, 1 and 2
    with pytest.raises(SettingError, match="no direction"):
        neighbour_distances(torch.zeros(1, 2), bank, 1, "cosine")


@given(st.integers(0, 1000), st.integers(5, 40), st.integers(1, 4), st.sampled_from(METRICS))
def test_the_order_of_the_bank_and_of_the_states_does_not_matter(seed, n, k, metric):
    bank, states = drawn(n, 3, seed), drawn(6, 3, seed + 1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    expected = neighbour_distances(states, bank, k, metric)
    torch.testing.assert_close(neighbour_distances(states.flip(0), bank[order], k, metric).flip(0), expected)
    torch.testing.assert_close(member_distances(bank[order], k, metric), member_distances(bank, k, metric)[order])


@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 4))
def test_a_member_is_not_its_own_neighbour_but_its_equals_are(seed, copies, k):
    bank = drawn(9, 3, seed)
    repeated = bank.repeat_interleave(copies, 0)
    found = member_distances(repeated, k)
    if k < copies:
        assert not found.any()
    else:
        assert (found > 0).all()  # k - copies + 1 of its neighbours are others


@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_distances_scale_with_the_states_and_do_not_see_where_the_origin_is(seed, scale):
    bank, states = drawn(20, 4, seed), drawn(5, 4, seed + 1)
    expected = neighbour_distances(states, bank, 3)
    torch.testing.assert_close(neighbour_distances(states * scale, bank * scale, 3), expected * scale)
    torch.testing.assert_close(neighbour_distances(states + 2, bank + 2, 3), expected)
    torch.testing.assert_close(
        neighbour_distances(states * scale, bank, 3, "cosine"), neighbour_distances(states, bank, 3, "cosine")
    )


@given(st.integers(0, 1000), st.integers(20, 200), st.sampled_from([0.01, 0.05, 0.2, 0.5]))
def test_the_threshold_leaves_the_share_delta_of_the_bank_outside(seed, n, delta):
    bank = drawn(n, 3, seed)
    outside = int((member_distances(bank, 2) > threshold(bank, 2, delta)).sum())
    assert outside == math.ceil(delta * (n - 1) - 1e-9)  # linear between order statistics


def test_of_3000_plain_states_150_are_outside_as_in_the_papers_table():
    bank = drawn(3000, 8)
    assert int((member_distances(bank) > threshold(bank)).sum()) == 150


def test_distances_of_close_states_far_from_the_origin_are_exact():
    bank = torch.full((12, 64), 1000.0)
    bank[:, 0] += torch.arange(12) / 8  # differences that float32 holds; products would lose them
    assert member_distances(bank, 1).tolist() == [0.125] * 12


def test_a_manifold_is_a_bank_with_what_is_asked_of_it():
    bank, states = Bank.of(drawn(50, 4).float()), drawn(7, 4, seed=3)
    manifold = Manifold.of(bank, k=4, delta=0.1, metric="cosine")
    assert manifold.to_json() == {
        "tau": threshold(bank.states, 4, 0.1, "cosine"),
        "k": 4,
        "delta": 0.1,
        "bank": 50,
        "metric": "cosine",
        "members": 50,
        "interval": list(manifold.interval),
        "search": "exact",
    }
    assert manifold.error is None
    assert torch.equal(manifold.distances(states), neighbour_distances(states.float(), bank.states, 4, "cosine"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"k": 4}, "from 1 to 3"),
        ({"k": 0}, "from 1 to 3"),
        ({"k": True}, "from 1 to 3"),
        ({"delta": 0}, "between 0 and 1"),
        ({"delta": 1}, "between 0 and 1"),
        ({"metric": "manhattan"}, "choose from euclidean, cosine"),
    ],
)
def test_what_has_no_answer_is_refused(change, why):
    with pytest.raises(SettingError, match=why):
        threshold(SQUARE, **{"k": 1, **change})


def test_states_that_are_no_numbers_are_refused():
    with pytest.raises(NonFiniteStates, match="float32"):
        neighbour_distances(torch.tensor([[math.nan, 0.0]]), SQUARE, 1)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_distances():
    bank, states = drawn(500, 64).float(), drawn(40, 64, seed=1).float()
    found = neighbour_distances(states, bank.cuda())
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), neighbour_distances(states, bank), rtol=1e-5, atol=1e-6)
