"""The projected prompt prior: the formula, what it leaves alone, and what it is a special case of."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mgap
from mgap.backbones.head import Head
from mgap.errors import BackboneMismatch, SettingError
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.mgap import entropy_of
from mgap.methods.prompt_prior import Projected
from mgap.priors.subspace import Subspace

WIDTH, VOCAB = 12, 30


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_head(bias=False, seed=0, **read):
    module = torch.nn.Linear(WIDTH, VOCAB, bias=bias)
    with torch.no_grad():
        module.weight.copy_(drawn(seed, VOCAB, WIDTH))
    return Head.measure(module, drawn(1, 2, WIDTH), **read)


def a_prior(rank=3):
    return Subspace.from_states(drawn(2, 20, WIDTH) + 3.0, rank)


def slow(prior, h, blind, entropy, rho, *, gate, protect, centre, lam):
    """Row by row, in float64, as the formula is written."""
    V, m = prior.basis, prior.mean if centre else torch.zeros_like(prior.mean)
    rows = []
    for x, b, e in zip(h.double(), blind.double(), entropy.double(), strict=True):
        inside = V @ (V.T @ x)
        gamma = torch.tanh(lam * e) if gate else torch.tensor(1.0)
        delta = 1 - (x @ inside) / (x.norm() * inside.norm()) if protect else torch.tensor(1.0)
        rows.append(x - rho * gamma * delta * (V @ (V.T @ (b - m))))
    return torch.stack(rows)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.floats(0, 8), st.booleans(), st.booleans(), st.booleans(), st.floats(0, 4), st.booleans())
def test_states_and_logits_are_the_formula(seed, rho, gate, protect, centre, lam, bias):
    prior, head = a_prior(), a_head(bias)
    method = mgap.PromptPrior(prior=prior, rho=rho, gate=gate, protect=protect, centre=centre, lam=lam)
    h, blind = drawn(seed, 4, WIDTH), drawn(seed + 1, 4, WIDTH)
    with torch.no_grad():
        plain = head.module(h)
        entropy = entropy_of(plain)
        move = Projected(prior, head, method)
        expected = slow(prior, h, blind, entropy, rho, gate=gate, protect=protect, centre=centre, lam=lam)
        assert torch.allclose(move.states(h, blind, entropy, rho, is_first=True).double(), expected, atol=1e-4)
        assert torch.allclose(
            (plain + move.logits(h, blind, entropy, is_first=True)[0]).double(),
            head.module(expected.float()).double(),
            atol=1e-3,
        )


def test_a_head_that_is_capped_is_read_through_its_cap():
    method, head = mgap.PromptPrior(prior=a_prior(), rho=2.0), a_head(scale=0.5, cap=3.0)
    h, blind, entropy = drawn(3, 4, WIDTH), drawn(4, 4, WIDTH), torch.ones(4)
    move = Projected(method.prior, head, method)
    with torch.no_grad():
        moved, plain = (
            3.0 * torch.tanh(0.5 * head.module(x) / 3.0) for x in (move.states(h, blind, entropy, 2.0, is_first=True), h)
        )
        torch.testing.assert_close(move.logits(h, blind, entropy, is_first=True)[0], moved - plain, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(0, 8))
def test_the_part_outside_the_subspace_is_untouched(seed, rho):
    prior, head = a_prior(), a_head()
    h, blind = drawn(seed, 4, WIDTH), drawn(seed + 1, 4, WIDTH)
    moved = Projected(prior, head, mgap.PromptPrior(prior=prior)).states(h, blind, torch.ones(4), rho, is_first=True)
    outside = torch.eye(WIDTH) - (prior.basis @ prior.basis.T).float()
    assert torch.allclose(moved @ outside, h @ outside, atol=1e-4)


def test_a_blind_state_like_the_mean_moves_nothing():
    prior, head = a_prior(), a_head()
    h = drawn(5, 4, WIDTH)
    blind = prior.mean.float().expand(4, -1)
    assert torch.allclose(
        Projected(prior, head, mgap.PromptPrior(prior=prior)).states(h, blind, torch.ones(4), 8.0, is_first=True), h, atol=1e-5
    )


def test_with_the_state_itself_as_the_blind_one_it_is_mgap():
    prior, head = a_prior(), a_head()
    h = drawn(6, 4, WIDTH)
    with torch.no_grad():
        entropy = entropy_of(head.module(h))
        method = mgap.PromptPrior(prior=prior, rho=0.75, gate=True, protect=True, centre=False)
        same = mgap.MGAP(prior, alpha=0.75)
        cut = same.effective_states(head, HeadInputs(h), 0.75)
        assert torch.allclose(Projected(prior, head, method).states(h, h, entropy, 0.75, is_first=True), cut, atol=1e-5)


def test_the_trace_shows_what_was_used(model, prior, picture):
    with model.using(mgap.PromptPrior(prior=prior, rho=2.0, gate=True)):
        answer = model.answer(picture, "Is there a dog?", max_new_tokens=3, trace=True)
    for step in answer.trace:
        assert step.values["open"] == 1.0
        assert 0 < step.values["strength"] < 2.0
        assert step.values["size"] > 0


def test_it_refuses_another_models_prior_and_a_rank_that_is_not_there(model, prior):
    with pytest.raises(BackboneMismatch):
        model.using(mgap.PromptPrior(prior=a_prior())).__enter__()
    with pytest.raises(SettingError, match="rank"):
        mgap.PromptPrior(prior=prior, rank=99)
    with pytest.raises(SettingError, match="gate"):
        mgap.PromptPrior(prior=prior, gate=1)
    with pytest.raises(SettingError, match="Subspace"):
        mgap.PromptPrior(prior="folder")
