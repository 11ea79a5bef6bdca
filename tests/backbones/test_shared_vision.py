"""Equal pictures are encoded once, and nothing else changes."""

import pytest
import torch
from PIL import Image

import mgap
from mgap.backbones.shared_vision import digest, shared_pictures

pytestmark = pytest.mark.both_families

QUESTIONS = ["Is there a dog?", "What?", "Describe what you can make out in this long and winding picture, please.", "Why?"]


@pytest.fixture
def other(picture):
    return Image.effect_noise(picture.size, 90).convert("RGB")


@pytest.fixture
def shown(model):
    """How many pixel rows the tower was given, call by call."""
    sizes = []
    patches = next(part for part in model.backbone.vision.modules() if isinstance(part, torch.nn.Conv2d | torch.nn.Conv3d))
    handle = patches.register_forward_pre_hook(lambda _part, args: sizes.append(len(args[0])))
    yield sizes
    handle.remove()


def tokens(model, pictures):
    return [answer.token_ids for answer in model.answers(pictures, QUESTIONS[: len(pictures)], batch_size=4, max_new_tokens=8)]


@pytest.mark.parametrize("method", [None, mgap.VCD(alpha=3.0), mgap.ICD(alpha=3.0), mgap.MoD(theta=0.0, a2=9.0)], ids=str)
def test_answers_are_the_same(model, picture, other, method):
    pictures = [picture, other, picture.copy(), picture]
    if method is None:
        plain = tokens(model, pictures)
        with shared_pictures(model.backbone):
            assert tokens(model, pictures) == plain
        return
    with model.using(method):
        plain = tokens(model, pictures)
        with shared_pictures(model.backbone):
            assert tokens(model, pictures) == plain


def test_each_picture_is_encoded_once(model, shown, picture, other):
    list(tokens(model, [picture]))
    (one,) = shown
    shown.clear()
    with shared_pictures(model.backbone):
        tokens(model, [picture, other, picture, picture])
        tokens(model, [picture, other])
        tokens(model, [picture])
    assert shown == [2 * one, 2 * one, one]
    shown.clear()
    tokens(model, [picture, other, picture, picture])
    assert shown == [4 * one]  # nothing stayed behind


def test_what_the_tower_says_goes_to_the_right_rows(model, picture, other):
    pictures = [other, picture, other, picture]
    inputs = model.backbone.encode(pictures, QUESTIONS)
    with torch.no_grad():
        plain = model.backbone.encode_pictures(inputs)
        with shared_pictures(model.backbone):
            shared = model.backbone.encode_pictures(inputs)
    for mine, theirs in zip(shared.pooler_output, plain.pooler_output, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_pictures_of_unlike_sizes_go_through_as_they_are(model, picture):
    pictures = [picture, picture.resize((96, 64)), picture]
    plain = tokens(model, pictures)
    with shared_pictures(model.backbone):
        assert tokens(model, pictures) == plain


def test_a_digest_tells_pixels_apart_to_the_bit():
    pixels = torch.rand(3, 4)
    assert digest(pixels) == digest(pixels.clone())
    assert digest(pixels) == digest(pixels.T.contiguous().T)
    changed = pixels.clone()
    changed[2, 3] = torch.nextafter(changed[2, 3], torch.tensor(2.0))
    assert len({digest(pixels), digest(changed), digest(pixels, salt="x"), digest(pixels, pixels)}) == 4
