"""Yes if close: the rule on hand-made probabilities, against itself written out, and its identity with a bias."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mgap
from mgap.backbones.head import Head
from mgap.errors import ModelError, SettingError, UnsupportedHead
from mgap.methods.base import Tap
from mgap.methods.bias import shift_logits
from mgap.methods.kinds.opposed_words import token_ids
from mgap.methods.yes_if_close import CloseChoice, choose_if_close
from mgap.pocket.benchmark import pope
from mgap.pocket.scenes import render
from mgap.run.first_words import first_words
from tests.reference import yes_if_close as reference
from tests.reference.loop import assert_agrees

UP, DOWN = ("is", "picture"), ("the",)  # one token each in the tiny models' vocabulary
YES, NO, OTHER, REST = range(4)
ONE_YES, ONE_NO = torch.tensor([YES]), torch.tensor([NO])


def chosen(yes, no):
    """The likeliest token after the rule as published, and whether it was close; a third token has what is left."""
    p = torch.tensor([[yes, no, 1 - yes - no]], dtype=torch.float64)
    scores, values = choose_if_close(p.log(), ONE_YES, ONE_NO, 0.2, 0.5)
    return int(scores.argmax()), bool(values["close"])


@pytest.mark.parametrize(
    ("yes", "no", "says", "is_close"),
    [
        (0.09, 0.10, OTHER, False),  # 0.19 together
        (0.10, 0.11, YES, True),  # 0.21 together, and a third token is the likeliest
        (0.21, 0.70, YES, True),  # 0.49 apart, no ahead
        (0.20, 0.71, NO, False),  # 0.51 apart
        (0.70, 0.21, YES, True),  # 0.49 apart, yes ahead
        (0.71, 0.20, YES, False),
        (0.00, 0.40, YES, True),  # below 0.5 together they are always close
        (0.26, 0.74, YES, True),
        (0.24, 0.76, NO, False),
    ],
)
def test_yes_is_said_where_the_two_have_more_than_the_mass_and_lie_within_the_margin(yes, no, says, is_close):
    assert chosen(yes, no) == (says, is_close)


def test_every_token_but_those_of_up_is_dropped_and_those_keep_their_logits():
    logits = torch.tensor([[[0.0, 0.2, 0.1, 0.3]], [[9.0, 0.0, 0.0, 0.0]]])  # one row is close, the other is not
    scores, values = choose_if_close(logits, torch.tensor([YES, REST]), ONE_NO, 0.2, 0.5)
    assert values["close"].tolist() == [[1.0], [0.0]]
    assert scores[0, 0].tolist() == pytest.approx([0.0, -math.inf, -math.inf, 0.3])
    assert torch.equal(scores[1], logits[1])


@given(st.floats(-6, 6).filter(lambda odds: abs(odds + math.log(3)) > 1e-4))
def test_where_the_two_have_all_the_mass_it_decides_as_a_bias_of_log_three(odds):
    logits = torch.tensor([[odds, 0.0, -40.0, -40.0]], dtype=torch.float64)
    scores, _ = choose_if_close(logits, ONE_YES, ONE_NO, 0.2, 0.5)
    assert scores.argmax() == shift_logits(logits, ONE_YES, ONE_NO, math.log(3)).argmax()


@pytest.mark.parametrize(("preset", "shift"), [("yes-if-close", math.log(3)), ("no-if-close", -math.log(3))])
def test_on_a_model_that_only_says_yes_or_no_it_answers_as_that_bias(preset, shift):
    model, questions = mgap.load("pocket/llava"), list(pope("adversarial", count=4))
    shown = {question.scene.seed: question.scene for question in questions}
    asked = [(question.scene.seed, question.text) for question in questions]
    methods = {
        "plain": None,
        "close": mgap.YesIfClose(preset=preset),
        "bias": mgap.Bias(shift=shift, up=("Yes",), down=("No",)),
        "always": mgap.YesIfClose(preset=preset, margin=1.0),
    }
    words = first_words(model, asked, methods, lambda seed: render(shown[seed]))
    assert words["close"] == words["bias"]
    assert set(words["always"]) == {preset.removesuffix("-if-close").capitalize()}
    assert set(words["plain"]) == {"Yes", "No"}


@pytest.fixture
def inputs(model, picture):
    return model.backbone.encode([picture], ["Is there a dog in the image?"])


def plain(model, inputs):
    with torch.no_grad():
        return model.backbone.model(**inputs).logits


def ids(model, words):
    return sorted(set().union(*(token_ids(word, model.backbone.tokenizer) for word in words)))


@pytest.mark.parametrize(("mass", "margin"), [(0.0, 1.0), (0.012, 0.01), (0.0, 0.0)])
def test_its_tokens_agree_with_the_rule_written_out(model, picture, mass, margin):
    up, down = ids(model, UP), ids(model, DOWN)
    method = mgap.YesIfClose(mass=mass, margin=margin, up=UP, down=DOWN)
    assert_agrees(model, picture, method, lambda inputs, new: reference.answer(model, inputs, up, down, mass, margin, new))


def test_some_steps_of_an_answer_are_close_and_others_are_not(model, picture):
    with model.using(mgap.YesIfClose(mass=0.012, margin=0.01, up=UP, down=DOWN)):
        answer = model.answer(picture, "What?", max_new_tokens=12, trace=True)
    assert {step.values["close"] for step in answer.trace} == {0.0, 1.0}
    for step in answer.trace:
        assert set(step.values) == {"up", "down", "close"}
        assert (step.values["close"] == 1) == (
            step.values["up"] + step.values["down"] > 0.012 and abs(step.values["up"] - step.values["down"]) < 0.01
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_margin_of_zero_returns_the_same_logits(family, checkpoints, picture, dtype):
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    inputs = model.backbone.encode([picture], ["Is there a dog in the image?"])
    before = plain(model, inputs)
    with model.using(mgap.YesIfClose(margin=0.0, up=UP, down=DOWN)) as attachment:
        assert torch.equal(plain(model, inputs), before)
        with attachment.record():
            assert torch.equal(plain(model, inputs), before)


def test_on_a_head_with_scaled_logits_it_reads_the_scaled_ones():
    z = torch.tensor([[[1.0, 0.0, -9.0, -9.0]], [[0.0, 0.2, -9.0, -9.0]]])  # 0.46 and 0.10 apart; scaled 0.96 and 0.38
    module = torch.nn.Linear(4, 4, bias=False)
    module.weight = torch.nn.Parameter(torch.eye(4))
    head = Head.measure(module, z, scale=4.0)
    with torch.no_grad():
        moved = head.post(CloseChoice(({YES}, {NO}), 0.2, 0.5, head, Tap())(module, (z,), module(z)))
    assert moved[:, 0].isfinite().sum(-1).tolist() == [4, 1]
    assert torch.equal(moved[0], 4 * z[0])
    assert moved[1, 0, YES] == 0


def test_a_soft_cap_is_refused(model):
    capped = Head.measure(torch.nn.Linear(8, 40, bias=False), torch.randn(2, 1, 8), cap=30.0)
    with pytest.raises(UnsupportedHead, match="caps its logits at 30"):
        mgap.YesIfClose(up=UP, down=DOWN).correction(model.backbone, capped, Tap())


def test_the_preset_names_the_words_unless_they_are_given():
    assert (mgap.YesIfClose().up, mgap.YesIfClose().down) == (("Yes",), ("No",))
    turned = mgap.YesIfClose(preset="no-if-close")
    assert (turned.up, turned.down, turned.mass, turned.margin) == (("No",), ("Yes",), 0.2, 0.5)
    assert mgap.YesIfClose(up="left", down=["right"]).up == ("left",)
    with pytest.raises(SettingError, match="choose from yes-if-close, no-if-close"):
        mgap.YesIfClose(preset="yes")


def test_words_that_cannot_be_told_apart_are_refused_and_leave_no_hook(model):
    for words, told in (({}, "'Yes' is not one token"), ({"up": "is", "down": ["is"]}, "share the tokens")):
        with pytest.raises(SettingError, match=told), model.using(mgap.YesIfClose(**words)):
            pass
    assert not model.backbone.head_module._forward_hooks
    with pytest.raises(ModelError, match="processor"), mgap.attach(model.backbone.model, mgap.YesIfClose()):
        pass


@pytest.mark.parametrize(
    ("name", "bad"), [("mass", -0.1), ("mass", True), ("margin", 1.5), ("margin", math.nan), ("up", True), ("down", [])]
)
def test_settings_out_of_range_are_refused(name, bad):
    with pytest.raises(SettingError, match=f"{name}="):
        mgap.YesIfClose(**{name: bad})
