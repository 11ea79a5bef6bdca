"""Theorem 1 itself: which steps lead closer, which is the best, and what it says where there is no error."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from mgap.diagnosis.theorem1 import Oracle
from mgap.errors import NonFiniteStates, SettingError


def drawn(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def oracles(draw):
    """States, references and a subspace, with errors of any size."""
    seed, d = draw(st.integers(0, 2**31)), draw(st.integers(2, 16))
    V = torch.linalg.qr(drawn(d, draw(st.integers(1, d)), seed)).Q
    h = drawn(6, d, seed + 1)
    return Oracle.of(h, h - draw(st.sampled_from([0.01, 1.0, 30.0])) * drawn(6, d, seed + 2), V)


@given(oracles(), st.floats(-3, 5))
def test_a_step_leads_closer_if_and_only_if_it_lies_in_the_interval(oracle, share):
    beta = share * 2 * oracle.best
    assume(abs(share) > 1e-6 and abs(share - 1) > 1e-6)
    held = oracle.holds
    closer = oracle.distance_after(beta) < oracle.distance
    assert torch.equal(closer[held], torch.full_like(closer[held], 0 < share < 1))
    assert torch.equal(oracle.contains(beta)[held], closer[held])
    assert not (oracle.distance_after(0.5)[~held] < oracle.distance[~held]).any()  # without the condition no step does
    assert not oracle.contains(0.5)[~held].any()


@given(oracles(), st.floats(0, 4))
def test_no_step_comes_closer_than_the_best(oracle, beta):
    assert (oracle.best >= 0).all()
    assert (oracle.distance_after(oracle.best) <= oracle.distance_after(beta) + 1e-12 * oracle.distance).all()
    assert torch.equal(oracle.best > 0, oracle.holds)


@given(oracles())
def test_the_best_step_takes_away_what_the_error_has_along_the_projection(oracle):
    left = oracle.distance_after(oracle.best).square()
    cosine = torch.cosine_similarity(oracle.h - oracle.reference, oracle.projection).clamp(min=0)
    torch.testing.assert_close(left, oracle.distance.square() * (1 - cosine.square()), rtol=1e-9, atol=1e-9)


def test_a_case_is_as_by_hand():
    oracle = Oracle.of(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [0.0]]))
    assert float(oracle.aligned) == 2
    assert float(oracle.best) == 0.5  # h - beta* h_proj = (1, 1)
    assert float(oracle.distance_after(0.5)) == 1
    assert [bool(oracle.contains(beta)) for beta in (0, 0.01, 0.99, 1)] == [False, True, True, False]
    terms = oracle.terms(torch.tensor([[1.0, 0.0]]), torch.tensor([0.25]))
    figures = {name: float(part / whole) for name, (part, whole) in terms.items()}
    assert figures == pytest.approx(
        {
            "distance": 2**0.5 / 5**0.5,
            "holds": 1,
            "best": 0.5,
            "beta": 0.25,
            "contains": 1,
            "closer": 1,
            "closer_best": 1 - 1 / 2**0.5,
        }
    )


def test_without_an_error_the_theorem_says_nothing():
    h = drawn(5, 4)
    oracle = Oracle.of(h, h, torch.eye(4)[:, :2])
    assert not oracle.holds.any()
    assert not oracle.contains(1e-9).any()
    assert not oracle.best.any()
    terms = oracle.terms(h - 1, torch.full((5,), 0.5))
    for name in ("best", "beta", "closer", "closer_best"):
        assert not terms[name][1].any()  # nothing to count


def test_a_state_outside_the_subspace_has_no_step_to_take():
    oracle = Oracle.of(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [0.0]]))
    assert (bool(oracle.holds), float(oracle.best), bool(oracle.contains(0.5))) == (False, 0.0, False)
    assert "beta" not in oracle.terms(oracle.h)


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(SettingError, match=r"must be \[n, d\] alike"):
        Oracle.of(torch.zeros(2, 3), torch.zeros(1, 3), torch.eye(3))
    with pytest.raises(NonFiniteStates, match="float32"):
        Oracle.of(torch.full((1, 3), torch.inf), torch.zeros(1, 3), torch.eye(3))
