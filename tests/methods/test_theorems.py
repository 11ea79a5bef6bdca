"""The paper's three theorems and the norm formula, over random subspaces, states and settings."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from mgap.methods.mgap import Settings, cut_state, entropy_of, gate_of
from tests.reference import mgap as reference


@st.composite
def situations(draw, strongest=6.0):
    """A subspace, a state (anywhere, inside, orthogonal, or zero), a head and settings; float64."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.integers(2, 24))
    rank = draw(st.integers(1, d))
    basis = torch.from_numpy(np.linalg.qr(rng.normal(size=(d, rank)))[0])
    h = torch.from_numpy(rng.normal(size=d) * draw(st.sampled_from([1e-3, 1.0, 1e3])))
    where = draw(st.sampled_from(["anywhere", "inside", "orthogonal", "zero"]))
    if where == "inside":
        h = basis @ (basis.T @ h)
    elif where == "orthogonal":
        h = h - basis @ (basis.T @ h)
        h = h - basis @ (basis.T @ h)
    elif where == "zero":
        h = torch.zeros_like(h)
    weight = torch.from_numpy(rng.normal(size=(draw(st.integers(2, 40)), d)) * draw(st.sampled_from([0.01, 1.0])))
    settings = Settings(
        alpha=draw(st.floats(0, strongest)),
        lam=draw(st.floats(0, 2)),
        gate=draw(st.booleans()),
        protect=draw(st.booleans()),
    )
    return basis, h, weight, settings, rng


def decode(basis, h, weight, settings):
    coeff, norm = h @ basis, torch.linalg.vector_norm(h)
    gate = gate_of(norm, coeff, entropy_of(h @ weight.T), settings)
    return gate, cut_state(h, basis, coeff, gate, norm, settings)


@given(situations())
def test_theorem_1_the_state_comes_closer_to_the_truth_when_the_error_lies_along_the_prior(situation):
    basis, h, weight, settings, rng = situation
    gate, cut = decode(basis, h, weight, settings)
    proj = basis @ (basis.T @ h)
    truth = h - torch.from_numpy(rng.normal(size=len(h))) * h.norm() - rng.uniform(0, 3) * proj
    error = h - truth
    along, size = float(error @ proj), float(proj @ proj)
    assume(along > 1e-9 and size > 1e-9)
    best = along / size  # beta*
    distance = float((cut - truth).square().sum())
    if 1e-6 < float(gate.beta) < 2 * best * (1 - 1e-6):
        assert distance < float(error.square().sum())
    assert distance >= float((h - best * proj - truth).square().sum()) - 1e-9 * (1 + distance)


@given(situations())
def test_theorem_2_the_coefficient_and_the_step_are_bounded(situation):
    basis, h, weight, settings, _ = situation
    gate, cut = decode(basis, h, weight, settings)
    assert 0 <= gate.beta <= settings.alpha
    if settings.alpha > 0 and settings.gate:
        assert gate.beta < settings.alpha
    assert 0 <= gate.cosine <= 1
    assert (cut - h).norm() <= settings.alpha * h.norm() + 1e-9 * (1 + h.norm())


@given(situations())
def test_theorem_3_only_the_prior_part_changes(situation):
    basis, h, weight, settings, _ = situation
    gate, cut = decode(basis, h, weight, settings)
    inside = basis @ (basis.T @ h)
    tolerance = 1e-10 * (1 + float(h.norm()) * (1 + settings.alpha))
    assert torch.allclose(cut - basis @ (basis.T @ cut), h - inside, rtol=0, atol=tolerance)
    assert torch.allclose(cut, (1 - gate.beta) * inside + (h - inside), rtol=0, atol=tolerance)


@given(situations())
def test_the_norm_of_the_cut_state_follows_from_beta_and_the_cosine(situation):
    basis, h, weight, settings, _ = situation
    gate, cut = decode(basis, h, weight, settings)
    coeff = h @ basis
    expected = h.square().sum() - (2 * gate.beta - gate.beta**2) * coeff.square().sum()
    terms = float((1 + settings.alpha) ** 2 * h.square().sum())  # which may cancel: all of a state can be cut away
    assert torch.allclose(cut.square().sum(), expected, rtol=1e-9, atol=1e-12 * terms)


@given(situations())
def test_a_state_inside_the_subspace_is_protected_and_one_outside_is_not_touched(situation):
    basis, h, weight, settings, _ = situation
    gate, cut = decode(basis, h, weight, settings)
    if gate.cosine > 1 - 1e-12 and settings.protect:
        assert torch.allclose(cut, h, rtol=1e-9)
    if gate.cosine < 1e-12:
        assert torch.allclose(cut, h, rtol=1e-9)


@given(situations())
def test_the_step_agrees_with_the_paper_written_out(situation):
    basis, h, weight, settings, _ = situation
    assume(float(h.norm()) > 0)
    _, cut = decode(basis, h, weight, settings)
    arguments = h.numpy(), basis.numpy(), weight.numpy(), 0.0, settings.alpha, settings.lam
    if float((basis.T @ h).norm() / h.norm()) < 1e-9:
        return  # the cosine of two roundings is anything; the update is zero either way
    expected, _ = reference.step(*arguments, gate=settings.gate, protect=settings.protect)
    assert torch.allclose(cut, torch.from_numpy(expected), rtol=1e-8, atol=1e-8 * float(h.norm()))


@given(situations())
def test_the_authors_rule_agrees_with_it_written_out(situation):
    basis, h, weight, settings, _ = situation
    assume(float(h.norm()) > 0.1 and float((basis.T @ h).norm()) > 1e-3 * float(h.norm()))
    ours = Settings(alpha=settings.alpha, lam=0.6, threshold=0.25, epsilon=1e-6, restore=True)
    coeff, norm = h @ basis, torch.linalg.vector_norm(h)
    gate = gate_of(norm, coeff, entropy_of(h @ weight.T, 1e-6), ours)
    cut = cut_state(h, basis, coeff, gate, norm, ours)
    expected, _ = reference.step_of_the_authors_code(h.numpy(), basis.numpy(), weight.numpy(), ours.alpha, 0.6, 0.25)
    assume(np.linalg.norm(expected) > 0.5 * float(h.norm()))  # nothing to restore when everything was cut away
    assert torch.allclose(cut, torch.from_numpy(expected), rtol=1e-6, atol=1e-6 * float(h.norm()))


@pytest.mark.parametrize("vocabulary", [2, 32_000])
def test_the_entropy_of_a_uniform_distribution_is_the_logarithm_of_its_size(vocabulary):
    assert entropy_of(torch.zeros(vocabulary, dtype=torch.float64)) == pytest.approx(np.log(vocabulary))


def test_a_masked_token_adds_nothing_to_the_entropy():
    logits = torch.tensor([0.0, 0.0, -torch.inf])
    assert entropy_of(logits) == pytest.approx(np.log(2))
