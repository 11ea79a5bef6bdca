"""OPERA: against itself written out, with and without going back; its zero; batches; refusals; nothing left behind."""

from copy import deepcopy

import pytest
import torch

import mgap
from mgap.errors import ModelError, SettingError, UnsupportedDecoding
from mgap.methods.gaze import IMPLEMENTATION, Gaze, attend
from mgap.methods.overtrust import collapse, column_scores, lengthen, most_common
from tests.reference import opera as reference

QUESTIONS = ("Is there a dog in the image?", "What?", "Describe what you can make out in this long and winding picture.")
NEW = 20
BACK = {"llava": {"sigma": 30.0, "r": 1}, "qwen3-vl": {"sigma": 40.0, "r": 1}}  # so that the tiny models go back


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32, and without placeholders in its answers, which the reference cannot read."""
    model = mgap.load(str(checkpoints[family]), dtype=torch.float32)
    names = [name for name in model.backbone.tokenizer.get_vocab() if "image" in name or "pad|" in name or "vision" in name]
    ids = torch.tensor(model.backbone.tokenizer.convert_tokens_to_ids(names))
    model.backbone.head_module.register_forward_hook(lambda _head, _args, logits: logits.index_fill(-1, ids, -1e4))
    return model


def tell(model, picture, question, **options):
    return model.answer(picture, question, max_new_tokens=NEW, **options).token_ids


def returns(answer):
    return answer.trace[-1].values["returns"]


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 1.0, "sigma": 50.0, "candidates": 5, "beams": 3}, {"alpha": 40.0, "sigma": 30.0, "candidates": 3, "beams": 2},
     {"alpha": 5e5, "sigma": 30.0, "candidates": 4, "beams": 1}],
    ids=["paper", "strong", "one beam"],
)  # fmt: skip
def test_opera_is_what_its_equations_say(exact, picture, settings):
    for question in QUESTIONS[:2]:
        inputs = exact.backbone.encode([picture], [question])
        expected, _ = reference.decode(exact, inputs, NEW, r=15, **settings)
        with exact.using(mgap.OPERA(**settings)):
            assert tell(exact, picture, question) == expected
