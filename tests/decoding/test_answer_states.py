"""States along whole answers: the head makes of each the scores that the method chose from, and a row is its own."""

from dataclasses import replace

import pytest
import torch

import mgap
from mgap.backbones.asked_rows import Asked, asking
from mgap.decoding.answer_states import answer_states
from mgap.decoding.attach import attached
from mgap.decoding.effective_states import first_states
from mgap.decoding.generate import end_ids
from mgap.errors import SettingError, UnsupportedDecoding
from mgap.registry import METHODS
from mgap.types import Decoding
from tests.methods.builders import build

QUESTIONS = ["Is there a dog in the image?", "What?", "How many people are there in this picture?"]
LENGTH = 5
SHORT = Decoding(max_new_tokens=LENGTH)
MADE = {
    "vcd": lambda _prior: mgap.VCD(noise_step=999),
    "icd subtract": lambda _prior: mgap.ICD(form="subtract"),
    "blind": lambda _prior: mgap.Blind(rho=2.0),
    "m3id": lambda _prior: mgap.M3ID(lam=0.4),
    "m3id gated": lambda _prior: mgap.M3ID(lam=0.4, constraint="confidence_gate", tau=0.05),
    "code": lambda _prior: mgap.CODE(k=2.0, length=6),
    "haltrapper": lambda _prior: mgap.HalTrapper(n=3, length=6),
    "haltrapper augmentive": lambda _prior: mgap.HalTrapper(n=3, length=6, form="augmentive"),
    "ed": lambda _prior: mgap.ED(alpha=0.8),
    "fast-ed": lambda _prior: mgap.FastED(alpha=0.8),
    "deco": lambda _prior: mgap.DeCo(layers=[1, 2]),
    "dola": lambda _prior: mgap.DoLa(layers=[1, 2]),
    "mod": lambda _prior: mgap.MoD(rho=0.1, theta=0.0, a2=3.0, beta=0.0),
    "sid": lambda _prior: mgap.SID(alpha=3.0, keep=1),
    "avisc": lambda _prior: mgap.AvisC(alpha=3.0),
    "pai": lambda _prior: mgap.PAI(gamma=2.0, start=0),
    "mgap": lambda prior: mgap.MGAP(prior),
    "predicted-prior": lambda prior: build("predicted-prior", prior),
    "prompt-prior": lambda prior: build("prompt-prior", prior),
    "tether": lambda prior: build("tether", prior),
    "mgap of the authors": lambda prior: mgap.MGAP(prior, preset="reference-code"),
}
BRANCHED = ["vcd", "m3id gated", "code", "haltrapper", "ed", "fast-ed"]


@pytest.fixture(scope="module")
def inputs(exact, pictures):
    return exact.backbone.encode(pictures, QUESTIONS)


@pytest.fixture(autouse=True)
def noted(exact, pictures):
    """What `inputs` ask, for methods that look at the pictures themselves."""
    with asking(exact.backbone.model, [Asked(p, q) for p, q in zip(pictures, QUESTIONS, strict=True)]):
        yield


def along(model, method, inputs, decoding=SHORT):
    with answer_states(model, method, decoding) as read:
        return read(inputs)


def generated(model, method, inputs):
    """Tokens and logits [B, T, ...] of transformers' own generate under the method."""
    options = {"max_new_tokens": LENGTH, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    with model.using(method):
        out = model.backbone.model.generate(**inputs, **options)
    return out.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(out.logits, 1)


def agree(one, other):
    assert [answer.tokens for answer in one] == [answer.tokens for answer in other]
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours.h, theirs.h, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.used, theirs.used, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(ours.strength, theirs.strength, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MADE)
def test_the_head_makes_of_every_step_what_the_method_chose_from(exact, inputs, prior, name):
    method, head = MADE[name](prior), exact.backbone.probe_head()
    tokens, expected = generated(exact, method, inputs)
    answers = along(exact, method, inputs)
    assert len(answers) == len(QUESTIONS)
    for row, answer in enumerate(answers):
        assert list(answer.tokens) == tokens[row, : len(answer.tokens)].tolist()
        assert answer.h.shape == answer.used.shape == (len(answer.tokens), head.hidden_size)
        scores = expected[row, : len(answer.tokens)]
        kept = scores.isfinite()  # what a method drops is no matter of the state
        assert kept.any(-1).all()
        made = head.post(head.product(answer.used).float())
        apart = torch.where(kept, made - scores, torch.nan)
        spread = apart - apart.nanmean(-1, keepdim=True)  # a constant changes nothing
        assert spread[kept].abs().max() < 2e-3


@pytest.mark.parametrize("name", BRANCHED)
def test_a_forward_of_its_own_for_the_branch_gives_the_same_steps(exact, inputs, prior, name):
    method = MADE[name](prior)
    agree(along(exact, replace(method, branch_mode="sequential"), inputs), along(exact, method, inputs))


@pytest.mark.parametrize("name", ["vcd", "code", "mgap", "haltrapper"])
def test_a_rows_steps_do_not_depend_on_its_batch(exact, inputs, pictures, prior, name):
    method = MADE[name](prior)
    with answer_states(exact, method, SHORT) as read:
        together = read(inputs)
        alone = [read(exact.backbone.encode([p], [q]))[0] for p, q in zip(pictures, QUESTIONS, strict=True)]
    agree(together, alone)


def test_plain_answers_are_the_models_and_their_states_those_that_the_head_reads(exact, inputs, pictures):
    answers = along(exact, None, inputs)
    said = [exact.answer(p, q, max_new_tokens=LENGTH).token_ids for p, q in zip(pictures, QUESTIONS, strict=True)]
    assert [answer.tokens for answer in answers] == said
    head = exact.backbone.probe_head()
    for answer in answers:
        assert head.product(answer.h).argmax(-1).tolist() == list(answer.tokens)
        assert torch.equal(answer.used, answer.h)
        assert not answer.strength.any()


@pytest.mark.parametrize("name", ["vcd", "mgap", "m3id"])
def test_the_first_step_is_the_first_tokens_state(exact, inputs, prior, name):
    method = MADE[name](prior)
    with first_states(exact, method) as read:
        first = read(inputs)
    for row, answer in enumerate(along(exact, method, inputs)):
        torch.testing.assert_close(answer.h[0], first.h[row], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(answer.used[0], first.at(float(answer.strength[0]))[row], rtol=1e-3, atol=1e-3)


def test_a_row_that_has_ended_adds_nothing_more(exact, inputs, monkeypatch):
    plain = along(exact, None, inputs)
    stop = plain[0].tokens[1]  # a token that comes early in one row
    monkeypatch.setattr(exact.backbone.model.generation_config, "eos_token_id", [stop])
    assert end_ids(exact.backbone) == {stop}
    for before, after in zip(plain, along(exact, None, inputs), strict=True):
        length = before.tokens.index(stop) + 1 if stop in before.tokens else LENGTH
        assert after.tokens == before.tokens[:length]
        assert after.is_ended == (stop in before.tokens)
        assert len(after.h) == len(after.used) == len(after.strength) == length
        torch.testing.assert_close(after.h, before.h[:length], rtol=1e-4, atol=1e-4)


def test_strengths_are_what_each_method_used(exact, inputs, prior):
    grown = along(exact, mgap.M3ID(lam=0.4), inputs)[0]
    torch.testing.assert_close(grown.strength.cpu(), torch.expm1(0.4 * torch.arange(1, len(grown.tokens) + 1)))
    torch.testing.assert_close(along(exact, mgap.MGAP(prior, alpha=0.3), inputs)[0].strength.cpu(), torch.full((LENGTH,), 0.3))
    weights = torch.cat([answer.strength for answer in along(exact, MADE["code"](prior), inputs)])
    assert len(weights.unique()) > 3  # found anew for every token


def test_a_gate_that_stays_shut_decodes_from_the_plain_state(exact, inputs):
    sure = mgap.M3ID(lam=0.4, constraint="confidence_gate", tau=1e-6)
    for answer in along(exact, sure, inputs):
        torch.testing.assert_close(answer.used, answer.h)


@pytest.mark.parametrize("form", ["contrastive", "augmentive"])
def test_a_picture_without_candidates_is_decoded_from_plainly(exact, inputs, form):
    method = mgap.HalTrapper(n=0, length=2, vocabulary=["zebra crossing"], form=form)  # nothing that a tiny model could name
    for found, plain in zip(along(exact, method, inputs), along(exact, None, inputs), strict=True):
        assert found.tokens == plain.tokens
        torch.testing.assert_close(found.used, plain.h, rtol=1e-4, atol=1e-4)


def test_another_strength_is_another_setting_where_there_is_one(prior):
    assert mgap.VCD(noise_step=7).with_strength(0.25) == mgap.VCD(noise_step=7, alpha=0.25)
    assert mgap.Blind().with_strength(2.0) == mgap.Blind(rho=2.0)
    assert mgap.MGAP(prior, preset="table-hard").with_strength(0.5).settings == mgap.MGAP(prior, alpha=0.5, lam=0.5).settings
    for method in (mgap.CODE(), mgap.M3ID()):
        assert not method.is_set_by_strength
        with pytest.raises(SettingError, match=rf"^{method.name} has no setting for its weight"):
            method.with_strength(0.5)


@pytest.mark.parametrize("name", [*METHODS.names(), "icd with vcd"])
def test_a_method_without_a_state_is_refused_by_name(exact, inputs, prior, name):
    method = build(name, prior)
    try:
        method.require_state()
    except SettingError:
        with pytest.raises(SettingError, match=rf"^{method.name} "), answer_states(exact, method):
            pass
    else:
        (answer, *_) = along(exact, method, inputs, Decoding(max_new_tokens=2))
        assert not torch.equal(answer.used, answer.h)
    assert not attached(exact.backbone.model)
    assert not exact.backbone.head_module._forward_pre_hooks


@pytest.mark.parametrize("options", [{"sample": True}, {"num_beams": 2}, {"static_cache": True}])
def test_other_decodings_and_attached_methods_are_refused(exact, options):
    with pytest.raises(UnsupportedDecoding, match="greedy"), answer_states(exact, None, Decoding(**options)):
        pass
    with exact.using(mgap.Blind()), pytest.raises(SettingError, match="blind is attached"), answer_states(exact, None):
        pass
