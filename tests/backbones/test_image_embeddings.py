"""Encoded pictures enter a forward in either way as the model's own would: as an argument, or at the text decoder."""

import inspect

import pytest
import torch

import mgap
from mgap.backbones.image_embeddings import ENCODED, ImageEmbedder, join_pictures
from mgap.errors import ModelError, UnsupportedDecoding

pytestmark = pytest.mark.both_families

QUESTIONS = ["What?", "Describe what you can make out in this picture."]


@pytest.fixture(scope="module")
def backbone(family, checkpoints):
    """In float32: a picture that is encoded in another batch is the same picture."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32).backbone


@pytest.fixture
def inputs(backbone, picture):
    return backbone.encode([picture, picture.rotate(90, expand=True)], QUESTIONS)


@pytest.fixture
def embedder(backbone):
    """As in versions whose forward takes pixels only, whichever this is."""
    shown = ImageEmbedder(backbone)
    shown.is_argument = False
    handles = shown.attach()
    yield shown
    for handle in handles:
        handle.remove()


def logits_of(backbone, call):
    with torch.no_grad():
        return backbone.model(**call).logits


def test_the_way_is_the_one_that_the_forward_has(backbone):
    assert ImageEmbedder(backbone).is_argument == (ENCODED in inspect.signature(backbone.model.forward).parameters)


def test_pictures_come_in_at_the_text_decoder_as_the_model_puts_them_in(backbone, inputs, embedder):
    call = embedder.encode_pixels("vcd", dict(inputs))
    assert call["pixel_values"] is None
    assert torch.equal(logits_of(backbone, call), logits_of(backbone, inputs))


def test_rows_without_a_picture_pass_it_unchanged(backbone, embedder):
    inputs = backbone.encode([None, None], QUESTIONS)
    plain = logits_of(backbone, inputs)
    assert torch.equal(logits_of(backbone, {**inputs, **embedder.arguments(inputs["input_ids"], None)}), plain)


def test_pictures_encoded_apart_are_those_encoded_together(backbone, inputs, picture, embedder):
    apart = [backbone.encode_pictures(backbone.encode([p], ["?"])) for p in (picture, picture.rotate(90, expand=True))]
    call = {**inputs, "pixel_values": None, **embedder.arguments(inputs["input_ids"], join_pictures(apart))}
    torch.testing.assert_close(logits_of(backbone, call), logits_of(backbone, inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_argument", [True, False])
def test_a_generate_shows_encoded_pictures(backbone, inputs, is_argument):
    shown = ImageEmbedder(backbone)
    if is_argument and not shown.is_argument:
        pytest.skip("the forward of this transformers takes no encoded pictures")
    shown.is_argument = is_argument
    hooks = len(backbone.language._forward_pre_hooks), len(backbone.model._forward_pre_hooks)
    plain = backbone.model.generate(**inputs, max_new_tokens=4, do_sample=False)
    rest = {key: value for key, value in inputs.items() if key != "pixel_values"}
    with torch.no_grad(), shown.for_generate(rest, backbone.encode_pictures(inputs)) as call:
        assert torch.equal(backbone.model.generate(**call, max_new_tokens=4, do_sample=False), plain)
    assert hooks == (len(backbone.language._forward_pre_hooks), len(backbone.model._forward_pre_hooks))


def test_too_few_pictures_are_refused_there(backbone, inputs, picture, embedder):
    one = backbone.encode_pictures(backbone.encode([picture], ["?"]))
    with pytest.raises(ModelError, match="placeholders"):
        logits_of(backbone, {**inputs, "pixel_values": None, **embedder.arguments(inputs["input_ids"], one)})


def test_a_family_that_was_not_checked_is_refused_with_the_version_to_use(inputs, embedder, monkeypatch):
    monkeypatch.setattr(type(embedder.backbone), "embeds_pictures", False)
    with pytest.raises(UnsupportedDecoding, match=r"checked for gemma3, .* only, not for \w+: use transformers 5\.18"):
        embedder.encode_pixels("vcd", dict(inputs))
    with pytest.raises(UnsupportedDecoding, match=r"use transformers 5\.18"), embedder.for_generate(dict(inputs), None):
        pass


def test_pixels_are_refused_by_a_method_where_generate_encodes_them(backbone, inputs):
    shown = ImageEmbedder(backbone)
    if not shown.is_argument:
        pytest.skip("the forward of this transformers takes no encoded pictures")
    with pytest.raises(UnsupportedDecoding, match="call generate"):
        shown.encode_pixels("vcd", dict(inputs))
