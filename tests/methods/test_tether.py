"""Tether: what lies outside comes back as far as it must, what lies inside stays; and the formula around it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mgap
from mgap.backbones.head import Head
from mgap.errors import BackboneMismatch, SettingError
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.mgap import entropy_of
from mgap.methods.tether import STEPS, come_back, manifolds_of
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold

WIDTH = 8


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_bank(count=80):
    return Bank.of(drawn(0, count, WIDTH))


def slow(bank, states, k, tau):
    """One state at a time, by all distances."""
    members, found = bank.states.double(), []

    def distance(x):
        return (members - x).norm(dim=1).sort().values[:k].mean()

    for u in states.double():
        x = u
        if distance(u) > tau:
            home = members[(members - u).norm(dim=1).argsort()[:k]].mean(0)
            for step in range(1, STEPS + 1):
                x = u + step / STEPS * (home - u)
                if distance(x) <= tau:
                    break
        found.append(x)
    return torch.stack(found)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.floats(0.1, 6), st.sampled_from([1, 3, 10]))
def test_coming_back_is_the_formula(seed, spread, k):
    bank = a_bank()
    manifold = Manifold.of(bank, k=k)
    states = spread * drawn(seed, 12, WIDTH)
    returned, back = come_back(manifold, states)
    assert torch.allclose(returned.double(), slow(bank, states, k, manifold.tau), atol=1e-4)
    assert torch.equal(back == 0, (returned == states).all(-1))
    assert ((back >= 0) & (back <= 1)).all()


def test_states_inside_are_the_very_same():
    manifold = Manifold.of(a_bank(), k=5)
    states = 0.1 * drawn(3, 4, WIDTH)
    assert come_back(manifold, states)[0] is states


def test_what_came_back_is_inside_or_at_its_neighbours_mean():
    manifold = Manifold.of(a_bank(), k=5)
    states = 5 * drawn(4, 50, WIDTH)
    returned, back = come_back(manifold, states)
    assert ((manifold.distances(returned) <= manifold.tau) | (back == 1)).all()
    assert float((manifold.distances(states) > manifold.tau).float().mean()) == 1.0
    assert float((manifold.distances(returned) > manifold.tau).float().mean()) < 0.1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(1, 8))
def test_towards_the_plain_state_it_is_the_largest_step_that_does_not_depart(seed, rho):
    manifold = Manifold.of(a_bank(), k=5)
    h, step = 0.1 * drawn(seed, 6, WIDTH), drawn(seed + 1, 6, WIDTH)
    returned, back = come_back(manifold, h + rho * step, h)
    assert torch.allclose(returned, h + (1 - back).unsqueeze(-1) * rho * step, atol=1e-4)
    assert (manifold.distances(returned) <= manifold.tau).all()
    farther = back > 0
    assert (manifold.distances((h + (1 - back + 1 / STEPS).unsqueeze(-1) * rho * step)[farther]) > manifold.tau).all()


def test_without_a_contrast_it_is_mgap_that_comes_back():
    module = torch.nn.Linear(WIDTH, 20, bias=False)
    head = Head.measure(module, drawn(1, 2, WIDTH))
    prior = mgap.Subspace.from_states(drawn(2, 20, WIDTH), 2)
    bank, h = a_bank(), 2 * drawn(5, 6, WIDTH)
    tether = mgap.Tether(bank=bank, prior=prior, alpha=0.9, rho=0.0)
    seen = HeadInputs(h, (h,), {}, {"open": torch.ones(6), "place": torch.ones(6)})
    cut = mgap.MGAP(prior, alpha=0.9).effective_states(head, HeadInputs(h), 0.9)
    assert torch.allclose(tether.effective_states(head, seen, 0.0), come_back(Manifold.of(bank), cut)[0], atol=1e-5)


def test_only_rows_that_ask_are_contrasted():
    module = torch.nn.Linear(WIDTH, 20, bias=False)
    head = Head.measure(module, drawn(1, 2, WIDTH))
    bank, h, blind = a_bank(), 0.1 * drawn(5, 2, WIDTH), 0.1 * drawn(6, 2, WIDTH)
    seen = HeadInputs(h, (blind,), {}, {"open": torch.tensor([1.0, 0.0]), "place": torch.ones(2)})
    moved = mgap.Tether(bank=bank, rho=1.0).effective_states(head, seen, 1.0)
    assert torch.allclose(moved[0], (2 * h - blind)[0], atol=1e-6)
    assert torch.equal(moved[1], h[1])


def test_what_lies_outside_comes_back_also_where_no_token_asks(model, picture):
    bank = Bank.of(drawn(0, 40, model.backbone.identity.hidden_size) + 50)  # far from every state
    plain = model.answer(picture, "Is there a dog?", max_new_tokens=4).token_ids
    with model.using(mgap.Tether(bank=bank, rho=0.0, unsure=1e3)):
        assert model.answer(picture, "Is there a dog?", max_new_tokens=4).token_ids != plain


def test_it_contrasts_where_the_entropy_is_high():
    method = mgap.Tether(bank=a_bank(), unsure=1.0)
    logits = torch.stack([torch.zeros(10), torch.tensor([9.0] + [0.0] * 9)])
    assert entropy_of(logits).tolist() == pytest.approx([2.3026, 0.0111], abs=1e-3)
    assert method.is_open(logits).tolist() == [True, False]
    assert mgap.Tether(bank=a_bank()).is_open(logits).tolist() == [True, True]


def test_first_tokens_are_held_to_first_tokens_and_later_ones_to_later_ones():
    near, far = drawn(0, 40, WIDTH), drawn(1, 40, WIDTH) + 50
    steps = torch.tensor([0] * 40 + [1] * 40)
    bank = Bank.of(torch.cat([near, far]), steps=steps)
    found = manifolds_of(bank, 5, 0.05, torch.device("cpu"))
    assert torch.equal(found[True].states, near)
    assert torch.equal(found[False].states, far)
    head = Head.measure(torch.nn.Linear(WIDTH, 20, bias=False), drawn(1, 2, WIDTH))
    h, tether = 0.1 * drawn(5, 2, WIDTH), mgap.Tether(bank=bank, k=5, rho=0.0)
    first, later = (HeadInputs(h, (h,), {}, {"open": torch.ones(2), "place": torch.full((2,), place)}) for place in (1.0, 2.0))
    assert torch.equal(tether.effective_states(head, first, 0.0), h)
    assert float((tether.effective_states(head, later, 0.0) - 50).abs().max()) < 5


def test_a_bank_of_first_tokens_alone_stands_for_all():
    found = manifolds_of(a_bank(), 5, 0.05, torch.device("cpu"))
    assert found[True] is found[False]


def test_the_trace_shows_how_far_a_state_came_back(model, picture):
    bank = Bank.of(drawn(0, 40, model.backbone.identity.hidden_size))
    with model.using(mgap.Tether(bank=bank, rho=4.0)):
        answer = model.answer(picture, "Is there a dog?", max_new_tokens=4, trace=True)
    assert all(0 <= step.values["back"] <= 1 and step.values["step"] >= 0 for step in answer.trace)
    assert any(step.values["back"] > 0 for step in answer.trace)


def test_a_bank_may_be_a_folder(tmp_path, model, picture):
    bank = Bank.of(drawn(0, 40, model.backbone.hidden_size), identity=model.backbone.identity)
    bank.save(tmp_path / "bank")
    said = []
    for given_ in (bank, str(tmp_path / "bank")):
        with model.using(mgap.Tether(bank=given_, rho=4.0)):
            said.append(model.answer(picture, "Is there a dog?", max_new_tokens=4).token_ids)
    assert said[0] == said[1]


def test_it_refuses_what_does_not_fit(model, prior):
    with pytest.raises(BackboneMismatch):
        model.using(mgap.Tether(bank=a_bank())).__enter__()
    for wrong, name in (
        ({"k": 0}, "k"),
        ({"towards": "home"}, "towards"),
        ({"delta": 0}, "delta"),
        ({"alpha": 1.0}, "prior"),
        ({"lam": -1}, "lam"),
    ):
        with pytest.raises(SettingError, match=name):
            mgap.Tether(bank=a_bank(), **wrong)
    with pytest.raises(SettingError, match="rank"):
        mgap.Tether(bank=a_bank(), prior=prior, alpha=1.0, rank=99)
    with pytest.raises(SettingError, match="bank"):
        mgap.Tether(bank=3)
