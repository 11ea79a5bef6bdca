"""MGAP at other settings from states in hand: the same tokens and numbers as decoding, as far as it goes."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mgap
from mgap.decoding.replay import Paths
from mgap.decoding.step_by_step import step_by_step
from mgap.decoding.strength_curve import curve
from mgap.errors import SettingError
from tests.methods.builders import build

QUESTION, LENGTH = "Is there a dog in the image?", 8


def ids(tokens):
    return [token.step.token_id for token in tokens]


@pytest.fixture(scope="module")
def plain(model, prior, picture):
    return list(step_by_step(model, mgap.MGAP(prior, alpha=0.0), picture, QUESTION, max_new_tokens=LENGTH))


@pytest.mark.filterwarnings("ignore:alpha=.* can flip the sign")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(alpha=st.floats(0, 8), lam=st.floats(0, 3), rank=st.integers(1, 5), gate=st.booleans(), protect=st.booleans())
def test_what_is_replayed_is_what_decoding_says(model, prior, picture, plain, alpha, lam, rank, gate, protect):
    method = mgap.MGAP(prior, alpha=alpha, lam=lam, rank=rank, gate=gate, protect=protect)
    paths = Paths(model)
    paths.add(plain)
    found = paths.replay(method, max_new_tokens=LENGTH)
    decoded = list(step_by_step(model, method, picture, QUESTION, max_new_tokens=LENGTH))
    assert len(found.tokens) >= 1  # the first token of every setting needs no forward
    assert ids(found.tokens) == ids(decoded)[: len(found.tokens)]
    assert found.is_whole == (ids(found.tokens) == ids(decoded))
    for replayed, token in zip(found.tokens, decoded, strict=False):
        assert replayed.text == token.text
        assert replayed.step.values == pytest.approx(token.step.values, rel=1e-4, abs=1e-5)
        torch.testing.assert_close(replayed.states.at(), token.states.at(), rtol=1e-4, atol=1e-4)
    paths.add(decoded)
    again = paths.replay(method, max_new_tokens=LENGTH)
    assert again.is_whole
    assert ids(again.tokens) == ids(decoded)


def test_a_contrasting_method_leaves_plain_states_and_one_that_steers_attention_does_not(model, prior, picture, plain):
    paths = Paths(model)
    paths.add(step_by_step(model, build("pai", prior), picture, QUESTION, max_new_tokens=3))
    assert len(paths) == 0
    assert paths.replay(mgap.MGAP(prior), max_new_tokens=3) == ((), False)
    paths.add(step_by_step(model, build("vcd", prior), picture, QUESTION, max_new_tokens=3))
    assert len(paths) == 3
    first = paths.replay(mgap.MGAP(prior, alpha=0.0), max_new_tokens=1)
    assert ids(first.tokens) == ids(plain)[:1]
    assert first.is_whole


def test_a_replay_that_comes_to_an_end_is_whole(model, prior, picture, plain, monkeypatch):
    monkeypatch.setattr(model.backbone.model.generation_config, "eos_token_id", ids(plain)[0])
    paths = Paths(model)
    paths.add(step_by_step(model, mgap.MGAP(prior, alpha=0.0), picture, QUESTION, max_new_tokens=LENGTH))
    found = paths.replay(mgap.MGAP(prior, alpha=0.0), max_new_tokens=LENGTH)
    assert (ids(found.tokens), found.is_whole) == (ids(plain)[:1], True)


def test_a_replay_is_as_long_as_it_may_be(model, prior, plain):
    paths = Paths(model)
    paths.add(plain)
    found = paths.replay(mgap.MGAP(prior, alpha=0.0), max_new_tokens=3)
    assert ids(found.tokens) == ids(plain)[:3]
    assert found.is_whole


def test_a_sweep_starts_at_plain_decoding_and_passes_through_the_methods_own_prediction(model, prior, picture):
    for name in ("mgap", "vcd", "deco"):
        (token,) = step_by_step(model, build(name, prior), picture, QUESTION, max_new_tokens=1)
        wanted = [c.token_id for c in (*token.step.before[:3], *token.step.after[:3])]
        own = curve(token.states, wanted, [0.0]).own
        found = curve(token.states, wanted, [0.0, own])
        for c in token.step.before[:3]:
            assert found.probabilities[c.token_id][0] == pytest.approx(c.probability, rel=1e-3)
        if name == "mgap":  # others drop unlikely tokens afterwards
            for c in token.step.after[:3]:
                assert found.probabilities[c.token_id][1] == pytest.approx(c.probability, rel=1e-3)


def test_a_method_without_a_state_has_no_sweep(model, prior, picture):
    (token,) = step_by_step(model, build("bias", prior), picture, QUESTION, max_new_tokens=1)
    with pytest.raises(SettingError, match="bias adds a constant"):
        curve(token.states, [1], [0.0, 1.0])


def test_the_head_in_float32_is_its_own_product_without_the_rounding(checkpoints, family):
    head = mgap.load(str(checkpoints[family]), dtype="bfloat16").backbone.probe_head()
    h = torch.randn(3, head.hidden_size, generator=torch.Generator().manual_seed(0)).to(head.device)
    exact = h @ head.module.weight.float().T
    torch.testing.assert_close(head.product(h), exact, rtol=1e-5, atol=1e-5)
    assert head.product(h).dtype == torch.float32
    torch.testing.assert_close(head.own_product(h).float(), exact, rtol=0.05, atol=0.05)
