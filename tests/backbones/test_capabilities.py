"""What a family can do is an attribute of its class: also of one that another package brings."""

import pytest

import mgap
from mgap.backbones.base import Backbone, families_that
from mgap.backbones.image_embeddings import ImageEmbedder
from mgap.backbones.prepared_pictures import Preparer
from mgap.backbones.shared_prefill import unshareable
from mgap.decoding.fast.captured_step import uncapturable
from mgap.errors import UnsupportedDecoding
from mgap.registry import BACKBONES
from tests.packages import installed

MODULE = '''
from mgap.backbones.base import Backbone

class Declared(Backbone):
    prepares_pictures = embeds_pictures = shares_prefill = captures_steps = True

class Silent(Backbone):
    """Says nothing of what it can do."""
'''


@pytest.fixture
def toy_backbones(tmp_path):
    points = {"toy_declared": "toy_backbones:Declared", "toy_silent": "toy_backbones:Silent"}
    with installed(tmp_path / "site", {"toy_backbones": MODULE}, {"mgap.backbones": points}):
        yield


def as_family(model, kind, monkeypatch):
    """The same model as one of another family."""
    monkeypatch.setattr(model.backbone.config, "model_type", kind, raising=False)
    return mgap.wrap(model.backbone.model, model.backbone.processor)


def test_a_backbone_of_another_package_gets_what_it_declares(toy_backbones, model, picture, monkeypatch):
    plain = model.answer(picture, "What?", max_new_tokens=4).token_ids
    declared = as_family(model, "toy_declared", monkeypatch)
    assert type(declared.backbone).__name__ == "Declared"
    preparer = Preparer.of(declared.backbone)
    assert preparer is not None
    assert unshareable(declared.backbone) == uncapturable(declared.backbone) == ""
    ImageEmbedder(declared.backbone)._check_family("vcd")
    assert declared.answer(preparer(picture), "What?", max_new_tokens=4).token_ids == plain
    assert declared.answer(picture, "What?", max_new_tokens=4, static_cache=True).token_ids == plain
    (shared,) = declared.answers([picture], ["What?"], prefill="shared", max_new_tokens=4)
    assert shared.token_ids == plain


def test_one_that_declares_nothing_is_refused_with_the_families_that_do(toy_backbones, model, monkeypatch):
    silent = as_family(model, "toy_silent", monkeypatch).backbone
    assert Preparer.of(silent) is None
    for refusal in (unshareable(silent), uncapturable(silent)):
        assert "toy_silent has not been checked" in refusal
        assert "idefics3, internvl, llava, " in refusal
        assert refusal.endswith("smolvlm, toy_declared")
    with pytest.raises(UnsupportedDecoding, match=r"gemma3, internvl, llava, .*toy_declared only, not for toy_silent"):
        ImageEmbedder(silent)._check_family("vcd")


def test_the_generic_backbone_declares_nothing():
    ours = [family for family in BACKBONES.names() if BACKBONES.get(family) is not Backbone]
    for capability in ("prepares_pictures", "embeds_pictures", "shares_prefill", "captures_steps"):
        assert getattr(Backbone, capability) is False
        assert set(families_that(capability)) < set(ours)
    assert Backbone.picture_layout is None
    assert families_that("picture_layout") == [
        "gemma3",
        "instructblip",
        "llava",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
    ]
