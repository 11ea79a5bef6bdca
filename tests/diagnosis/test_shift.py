"""Shifts split by a subspace: against projectors written out, in cases known by hand, and MGAP's against a contrast's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mgap.diagnosis.shift import split_shift
from mgap.errors import NonFiniteStates, SettingError

PLANE = torch.eye(3, dtype=torch.float64)[:, :2]  # the first two axes


def drawn(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def basis(d, rank, seed=0):
    return torch.linalg.qr(drawn(d, rank, seed)).Q


def test_a_step_of_known_lengths_is_split_as_by_hand():
    shift = split_shift(torch.tensor([[3.0, 4.0, 12.0]]), torch.tensor([[0.0, 4.0, 8.0]]), PLANE)
    assert [float(value) for value in vars(shift).values()] == pytest.approx([13, 80**0.5, 5, 4, 3, 4])
    figures = {name: float(part / whole) for name, (part, whole) in shift.terms().items()}
    assert figures == pytest.approx(
        {
            "prior": 5,
            "prior_share": 5 / 13,
            "prior_after": 4,
            "prior_after_share": 4 / 80**0.5,
            "inside": 3,
            "inside_share": 3 / 13,
            "outside": 4,
            "outside_share": 4 / 13,
            "held": 9 / 25,
            "moved_share": 5 / 13,
        }
    )


@given(st.integers(0, 1000), st.integers(2, 12), st.data())
def test_the_parts_are_those_of_the_projector_and_their_squares_add_up(seed, d, data):
    V = basis(d, data.draw(st.integers(1, d)), seed)
    h, after = drawn(5, d, seed + 1), drawn(5, d, seed + 2)
    shift, P = split_shift(h, after, V), V @ V.T
    step = after - h
    torch.testing.assert_close(shift.inside, (step @ P).norm(dim=-1))
    torch.testing.assert_close(shift.outside, (step - step @ P).norm(dim=-1))
    torch.testing.assert_close(shift.inside**2 + shift.outside**2, step.square().sum(-1))
    torch.testing.assert_close(shift.prior, (h @ P).norm(dim=-1))
    torch.testing.assert_close(shift.prior_after, (after @ P).norm(dim=-1))


@given(st.integers(0, 1000), st.floats(0.01, 2))
def test_a_step_along_the_projection_is_all_inside(seed, beta):
    V, h = basis(9, 3, seed), drawn(4, 9, seed + 1)
    shift = split_shift(h, h - beta * (h @ V) @ V.T, V)
    assert (shift.outside < 1e-12).all()
    torch.testing.assert_close(shift.inside, beta * shift.prior)
    torch.testing.assert_close(shift.prior_after, abs(1 - beta) * shift.prior)


def test_states_that_do_not_move_or_are_zero_count_nowhere():
    terms = split_shift(torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), PLANE).terms()
    assert terms["prior_share"][1].tolist() == [0, 0]
    assert terms["inside_share"][0].tolist() == [0, 0]
    assert terms["prior_after_share"][1].tolist() == [0, 1]
    assert terms["held"][1].tolist() == [0, 1]


def test_what_does_not_fit_together_is_refused():
    for before, after in ((torch.zeros(2, 3), torch.zeros(3, 3)), (torch.zeros(2, 4), torch.zeros(2, 4))):
        with pytest.raises(SettingError, match=r"must be \[n, d\] alike"):
            split_shift(before, after, PLANE)
    with pytest.raises(NonFiniteStates, match="float32"):
        split_shift(torch.full((1, 3), torch.nan), torch.zeros(1, 3), PLANE)
