"""A method in attention inherits everything but its edit: the interception, the trace and the refusals."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

import mgap
from mgap.errors import ModelError, PromptError, UnsupportedDecoding
from mgap.methods.kinds.attention import AttentionMethod

QUESTIONS = ["What?", "Is there a dog in the image?"]
NEW = 6


@dataclass(frozen=True)
class Hide(AttentionMethod):
    """The newest token sees a share of the picture's scores only, from a block on."""

    name: ClassVar[str] = "hide"
    summary: ClassVar[str] = "look away from the picture"

    lowered: float = 0.0
    start: int = 0

    def blocks(self, count):
        return range(self.start, count)

    def edit_scores(self, scores, keys):
        return scores - self.lowered * (keys.images & keys.visible)[:, None, None]


@dataclass(frozen=True)
class Read(AttentionMethod):
    """Changes nothing, and keeps how much of each block's weight the picture has."""

    name: ClassVar[str] = "read"
    summary: ClassVar[str] = "read weights"
    needs_picture: ClassVar[bool] = False

    shares: list = field(default_factory=list, compare=False)

    def edit_scores(self, scores, keys):
        weights = scores.softmax(-1)
        self.shares.append((keys.block, (weights * keys.images[:, None, None]).sum(-1).mean((1, 2))))
        return scores


@pytest.fixture(scope="module")
def exact(request, checkpoints):
    return mgap.load(str(checkpoints["llava"]), dtype="float32", device="cpu")


def said(model, picture, method=None, **options):
    if method is None:
        return [a.token_ids for a in model.answers([picture] * 2, QUESTIONS, max_new_tokens=NEW, **options)]
    with model.using(method):
        return [a.token_ids for a in model.answers([picture] * 2, QUESTIONS, max_new_tokens=NEW, **options)]


def test_an_edit_of_nothing_changes_no_answer_and_one_of_scores_does(exact, picture):
    plain = said(exact, picture)
    assert said(exact, picture, Hide()) == plain
    changed = said(exact, picture, Hide(lowered=50.0))
    assert changed != plain
    assert said(exact, picture, Hide(lowered=50.0, start=len(exact.backbone.layers) - 1)) != changed
    assert said(exact, picture) == plain


def test_beams_keep_to_the_edit(exact, picture):
    plain = said(exact, picture, num_beams=2)
    assert said(exact, picture, Hide(), num_beams=2) == plain
    assert said(exact, picture, Hide(lowered=50.0), num_beams=2) != plain


def test_weights_can_be_read(exact, picture):
    method, count = Read(), len(exact.backbone.layers)
    with exact.using(method):
        exact.answer(picture, "What?", max_new_tokens=3)
        blocks = [block for block, _ in method.shares]
        assert blocks == list(range(count)) * 3  # the prompt, and each token that was read
        assert all(0 < float(share) < 1 for _, share in method.shares)
        exact.answer(None, "What?", max_new_tokens=1)
    assert float(method.shares[-1][1]) == 0


def test_its_trace_shows_the_logits_that_it_gave(exact, picture):
    with exact.using(Hide(lowered=50.0)):
        answer = exact.answer(picture, "What?", max_new_tokens=3, trace=True)
    assert [step.token_id for step in answer.trace] == list(answer.token_ids)


def test_what_it_cannot_act_in_is_refused(exact, picture):
    own, text = exact.backbone.model, exact.backbone.config.get_text_config()
    inputs, usual = exact.backbone.encode([picture], ["What?"]), text._attn_implementation
    with exact.using(Hide(lowered=1.0)):
        with pytest.raises(PromptError, match="hide acts on the attention to a picture"):
            exact.answer(None, "What?", max_new_tokens=1)
        for options in ({"static_cache": True}, {"compile": True}, {"prompt_lookup": 2}):
            with pytest.raises(UnsupportedDecoding, match="hide does not work with"):
                exact.answer(picture, "What?", max_new_tokens=1, **options)
        for options in ({"cache_implementation": "static"}, {"output_attentions": True}, {"use_cache": False}):
            with pytest.raises(UnsupportedDecoding, match="hide"), torch.no_grad():
                own.generate(**inputs, max_new_tokens=2, **options)
    text._attn_implementation = "flash_attention_2"
    try:
        with pytest.raises(ModelError, match="flash_attention_2"), exact.using(Hide()):
            pass
        assert text._attn_implementation == "flash_attention_2"
    finally:
        text._attn_implementation = usual
    assert not own._forward_pre_hooks
    assert text._attn_implementation == usual
