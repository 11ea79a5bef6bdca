"""An answer, token by token: what is handed out is what decoding says, and leaving early stops it."""

import threading

import pytest

import mgap
from mgap.decoding.attach import attached
from mgap.decoding.step_by_step import step_by_step
from mgap.errors import UnsupportedDecoding
from mgap.registry import METHODS
from mgap.types import Mode
from tests.methods.builders import build

QUESTION = "Is there a dog in the image?"
STREAMED = [name for name in METHODS.names() if Mode.STREAM in METHODS.get(name).modes]


@pytest.mark.parametrize("name", STREAMED)
def test_every_method_that_streams_gives_its_own_answer_with_its_trace(name, model, prior, picture):
    method = build(name, prior)
    found = list(step_by_step(model, method, picture, QUESTION, max_new_tokens=6))
    with model.using(method):
        answer = model.answer(picture, QUESTION, max_new_tokens=6, trace=True)
    assert [token.step.token_id for token in found] == list(answer.token_ids)
    assert "".join(token.text for token in found).strip() == answer.text.rstrip("\ufffd")  # but for half a character at the end
    for token, step in zip(found, answer.trace, strict=True):
        assert token.step.values == pytest.approx(step.values, rel=1e-4, abs=1e-5)
        assert [c.token_id for c in token.step.after][:1] == [c.token_id for c in step.after][:1]
        assert token.states.h.shape == (1, prior.hidden_size)
    assert not attached(model.backbone.model)


def test_at_strength_0_it_is_plain_decoding(model, prior, picture):
    found = list(step_by_step(model, mgap.MGAP(prior, alpha=0.0), picture, QUESTION, max_new_tokens=8))
    assert [token.step.token_id for token in found] == list(model.answer(picture, QUESTION, max_new_tokens=8).token_ids)
    assert all(token.step.values["beta"] == 0 and token.step.before == token.step.after for token in found)


def test_only_the_end_token_is_an_end_and_it_adds_no_text(model, prior, picture):
    found = list(step_by_step(model, mgap.MGAP(prior), picture, QUESTION, max_new_tokens=64))
    assert not any(token.is_end for token in found[:-1])
    if found[-1].is_end:
        assert found[-1].text == ""
    else:
        assert len(found) == 64


def test_leaving_early_stops_the_model_and_takes_the_method_off(model, prior, picture):
    before = threading.active_count()
    made = step_by_step(model, mgap.MGAP(prior), picture, QUESTION, max_new_tokens=500)
    next(made)
    assert attached(model.backbone.model)
    made.close()
    assert not attached(model.backbone.model)
    assert threading.active_count() == before


def test_a_method_that_cannot_be_streamed_is_refused_before_the_model_runs(model, prior, picture):
    with pytest.raises(UnsupportedDecoding, match="opera does not work with stream decoding"):
        next(step_by_step(model, build("opera", prior), picture, QUESTION))


def test_an_error_inside_the_model_reaches_the_loop(model, prior, picture):
    def fail(*_):
        raise RuntimeError("the layer gave way")

    handle = model.backbone.model.get_output_embeddings().register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="gave way"):
            list(step_by_step(model, mgap.MGAP(prior), picture, QUESTION, max_new_tokens=4))
    finally:
        handle.remove()
    assert not attached(model.backbone.model)
