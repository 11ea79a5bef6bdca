"""The constant shift: against itself written out, to the bit at zero, and refused where a word has no token."""

import math

import pytest
import torch

import mgap
from mgap.backbones.head import Head
from mgap.errors import ModelError, SettingError, UnsupportedHead
from mgap.methods.base import Tap
from mgap.methods.bias import LogitShift
from mgap.methods.kinds.opposed_words import token_ids
from tests.reference import bias as reference
from tests.reference.loop import assert_agrees

UP, DOWN = ("is", "picture"), ("the",)  # one token each in the tiny models' vocabulary


@pytest.fixture
def inputs(model, picture):
    return model.backbone.encode([picture], ["Is there a dog in the image?"])


def plain(model, inputs):
    with torch.no_grad():
        return model.backbone.model(**inputs).logits


def ids(model, words):
    return sorted(set().union(*(token_ids(word, model.backbone.tokenizer) for word in words)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_shift_of_zero_returns_the_same_logits(family, checkpoints, picture, dtype):
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    inputs = model.backbone.encode([picture], ["Is there a dog in the image?"])
    before = plain(model, inputs)
    with model.using(mgap.Bias(shift=0.0, up=UP, down=DOWN)) as attachment:
        assert torch.equal(plain(model, inputs), before)
        with attachment.record():
            assert torch.equal(plain(model, inputs), before)


@pytest.mark.parametrize("shift", [-9.0, 2.5, 6.0])
def test_its_tokens_agree_with_the_shift_written_out(model, picture, shift):
    up, down = ids(model, UP), ids(model, DOWN)
    method = mgap.Bias(shift=shift, up=UP, down=DOWN)
    assert_agrees(model, picture, method, lambda inputs, new: reference.answer(model, inputs, up, down, shift, new))


def test_the_log_odds_move_by_the_shift_and_nothing_else_moves(model, inputs):
    before, up, down = plain(model, inputs), ids(model, UP), ids(model, DOWN)
    with model.using(mgap.Bias(shift=3.0, up=UP, down=DOWN)):
        moved = plain(model, inputs) - before
    for token in range(before.shape[-1]):
        expected = 1.5 if token in up else -1.5 if token in down else 0.0
        torch.testing.assert_close(moved[..., token], torch.full_like(moved[..., token], expected), rtol=0, atol=1e-5)


def test_on_a_head_with_scaled_logits_the_logits_move_by_the_shift():
    module, state = torch.nn.Linear(8, 40, bias=False), torch.randn(2, 1, 8)
    head = Head.measure(module, state, scale=0.25)
    with torch.no_grad():
        z = module(state)
        moved = head.post(LogitShift(({3}, {5}), 2.0, head, Tap())(module, (state,), z)) - head.post(z)
    assert moved[0, 0, [3, 4, 5]].tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-6)


def test_a_soft_cap_is_refused():
    module, state = torch.nn.Linear(8, 40, bias=False), torch.randn(2, 1, 8)
    with pytest.raises(UnsupportedHead, match="caps its logits at 30"):
        Head.measure(module, state, cap=30.0).unpost(module(state))


def test_a_word_is_found_at_the_start_and_after_a_space(model):
    tokenizer = model.backbone.tokenizer
    assert {tokenizer.decode([token]) for token in token_ids("is", tokenizer)} == {"is", " is"}
    assert {tokenizer.decode([token]) for token in token_ids("picture", tokenizer)} == {" picture"}


def test_the_trace_has_the_plain_mass_of_both_sides(model, picture):
    with model.using(mgap.Bias(shift=6.0, up=UP, down=DOWN)):
        answer = model.answer(picture, "What?", max_new_tokens=3, trace=True)
    for step in answer.trace:
        assert set(step.values) == {"up", "down"}
        assert 0 < step.values["up"] + step.values["down"] < 1


def test_the_default_words_are_tokens_of_the_pocket_models(picture):
    for name in ("pocket/llava", "pocket/qwen3-vl"):
        model = mgap.load(name)
        for shift, word in ((60.0, "Yes"), (-60.0, "No")):
            with model.using(mgap.Bias(shift=shift)):
                assert model.answer(picture, "Is there a dog in the image?", max_new_tokens=1).text.lower() == word.lower()


def test_a_word_of_several_tokens_is_refused_and_leaves_no_hook(model):
    with pytest.raises(SettingError, match="'Yes' is not one token"), model.using(mgap.Bias(shift=1.0)):
        pass
    assert not model.backbone.head_module._forward_hooks


def test_words_on_both_sides_are_refused(model):
    with pytest.raises(SettingError, match="share the tokens"), model.using(mgap.Bias(shift=1.0, up="is", down=["is"])):
        pass


def test_without_a_processor_it_is_refused(model):
    with pytest.raises(ModelError, match="processor"), mgap.attach(model.backbone.model, mgap.Bias(shift=1.0)):
        pass


@pytest.mark.parametrize("bad", [math.nan, math.inf, "much", True, None])
def test_a_shift_that_is_no_finite_number_is_refused(bad):
    with pytest.raises(SettingError, match="shift"):
        mgap.Bias(shift=bad)


@pytest.mark.parametrize("bad", [True, [True, False], [], "", [" "], 3])
def test_words_that_are_none_are_refused(bad):
    with pytest.raises(SettingError, match="up="):
        mgap.Bias(shift=1.0, up=bad)
