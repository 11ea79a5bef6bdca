"""The trace holds the values that were used."""

from itertools import takewhile

import pytest
import torch

import mgap
from mgap.errors import SettingError, UnsupportedDecoding
from mgap.registry import METHODS
from mgap.types import Mode
from tests.methods.builders import build
from tests.tiers import ONE_OF_A_KIND

pytestmark = pytest.mark.filterwarnings("ignore:alpha=")


def test_every_token_has_its_values_and_they_fit_together(model, prior, picture):
    with model.using(mgap.MGAP(prior, alpha=0.75, lam=0.5)):
        answer = model.answer(picture, "What is this?", max_new_tokens=6, trace=True)
    assert [step.token_id for step in answer.trace] == list(answer.token_ids)
    for step in answer.trace:
        v = step.values
        assert v["gamma"] == pytest.approx(torch.tanh(torch.tensor(0.5 * v["entropy"])).item(), abs=1e-6)
        assert v["delta"] == pytest.approx(1 - v["cosine"], abs=1e-6)
        assert v["beta"] == pytest.approx(0.75 * v["gamma"] * v["delta"], abs=1e-6)
        assert step.after[0].token_id == step.token_id  # greedy takes the likeliest after the correction
        assert len(step.before) == len(step.after) == 5
        assert 0 < step.before[-1].probability <= step.before[0].probability <= 1


def test_the_traced_values_are_those_of_the_forward_that_ran(model, prior, picture):
    """Recompute the first step from the state the head read; a trace of recomputed values would pass only if equal."""
    states = []
    handle = model.backbone.head_module.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    with model.using(mgap.MGAP(prior)):
        states.clear()
        answer = model.answer(picture, "What is this?", max_new_tokens=3, trace=True)
    handle.remove()
    assert len(states) >= len(answer.trace) == 3
    for h, step in zip(states, answer.trace, strict=False):
        state = h[0, -1].double().cpu()
        logits = state @ model.backbone.head_module.weight.detach().double().cpu().T
        p = logits.softmax(-1)
        assert step.values["entropy"] == pytest.approx(float(-(p * p.log()).sum()), rel=1e-4)
        assert step.values["cosine"] == pytest.approx(float((state @ prior.basis).norm() / state.norm()), rel=1e-4)
        assert step.before[0].probability == pytest.approx(float(p.max()), rel=1e-4)


def test_tracing_does_not_change_the_answer(model, prior, picture):
    with model.using(mgap.MGAP(prior, alpha=4.0)):
        plain = model.answer(picture, "What is this?", max_new_tokens=8)
        traced = model.answer(picture, "What is this?", max_new_tokens=8, trace=True)
    assert plain.token_ids == traced.token_ids
    assert plain.trace is None


def test_each_row_of_a_batch_has_its_own_trace(model, prior, picture):
    questions = ["What?", "Describe everything that you can see in the picture."]
    with model.using(mgap.MGAP(prior)):
        together = list(model.answers([picture] * 2, questions, max_new_tokens=4, trace=True))
        alone = [model.answer(picture, q, max_new_tokens=4, trace=True) for q in questions]
    for a, b in zip(together, alone, strict=True):
        assert [s.values for s in a.trace] == [pytest.approx(s.values, abs=1e-4) for s in b.trace]


def forced_betas(model, attachment, picture, question, token_ids):
    """beta at every token of a given answer, from one forward over prompt and answer together."""
    inputs = model.backbone.encode([picture], [question])
    tokens = torch.tensor([token_ids], device=model.backbone.device)
    start = inputs["input_ids"].shape[1] - 1
    inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens)], dim=1)
    seen = []
    attachment._tap.listener = seen.append
    with torch.no_grad():
        model.backbone.model(**inputs)
    attachment._tap.listener = None
    return seen[0].values["beta"][0, start:-1].tolist()


@pytest.mark.parametrize("options", [{"num_beams": 4}, {"num_beams": 4, "num_return_sequences": 4},
                                     {"sample": True, "num_return_sequences": 4, "seed": 2}])  # fmt: skip
def test_each_sequence_is_traced_along_its_own_history(model, prior, picture, options):
    question = "What is this?"
    placeholder = model.backbone.image_token_id  # a random model may say it; a prompt with one more is refused
    with model.using(mgap.MGAP(prior, alpha=4.0)) as attachment:
        answer = model.answer(picture, question, max_new_tokens=6, trace=True, **options)
        sequences, compared = [answer, *answer.alternatives], 0
        assert len({a.token_ids for a in sequences}) == len(sequences) == options.get("num_return_sequences", 1)
        for one in sequences:
            assert [step.token_id for step in one.trace] == list(one.token_ids)
            tokens = list(takewhile(lambda token: token != placeholder, one.token_ids))
            expected = forced_betas(model, attachment, picture, question, tokens)
            assert [step.values["beta"] for step in one.trace[: len(tokens)]] == pytest.approx(expected, abs=1e-3)
            compared += len(tokens)
    assert compared > 3 * len(sequences)


def test_a_trace_needs_a_method(model, picture):
    with pytest.raises(SettingError, match="no method to trace"):
        model.answer(picture, "What is this?", trace=True)


@pytest.mark.parametrize("name", [name for name in ONE_OF_A_KIND.values() if Mode.COMPILE in METHODS.get(name).modes])
@pytest.mark.long
@pytest.mark.usefixtures("uncompiled_graphs")
def test_a_compiled_answer_has_the_trace_of_a_plain_one(model, prior, picture, name):
    with model.using(build(name, prior)):
        untraced = model.answer(picture, "What is this?", max_new_tokens=8, compile=True)  # compiled without a listener
        compiled = model.answer(picture, "What is this?", max_new_tokens=8, compile=True, trace=True)
        plain = model.answer(picture, "What is this?", max_new_tokens=8, trace=True)
    assert untraced.token_ids == compiled.token_ids == plain.token_ids
    for one, other in zip(compiled.trace, plain.trace, strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-3)
        assert one.after[0].token_id == other.after[0].token_id


def test_a_trace_is_refused_where_steps_and_tokens_do_not_match(model, prior, picture):
    with model.using(mgap.MGAP(prior)), pytest.raises(UnsupportedDecoding, match="trace"):
        model.answer(picture, "What is this?", trace=True, prompt_lookup=2)


def test_recording_somebodys_own_generate_keeps_one_entry_a_forward(model, prior, picture):
    own = model.backbone.model
    inputs = model.backbone.encode([picture], ["What is this?"])
    with mgap.attach(own, mgap.MGAP(prior)) as attachment, attachment.record(top=3) as recorder:
        tokens = own.generate(**inputs, max_new_tokens=5, do_sample=False)
    made = tokens.shape[1] - inputs["input_ids"].shape[1]
    assert len(recorder.steps) >= made
    assert recorder.steps[0].after[1].shape == (1, 3)
