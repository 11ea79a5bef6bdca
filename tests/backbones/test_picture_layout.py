"""Encoded pixels become the pictures they show, and pictures become pixels, in both layouts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, Qwen2VLImageProcessorPil

import mgap
from mgap.backbones.llava import Llava
from mgap.backbones.picture_layout import from_pictures, require_layout, to_pictures
from mgap.backbones.qwen_vl import QwenVL
from mgap.errors import ModelError, PromptError

pytestmark = pytest.mark.both_families


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def shown(picture):
    """[3, height, width] in 0..1."""
    return torch.tensor(np.asarray(picture)).permute(2, 0, 1) / 255


def bare(family, images, **vision):
    """A backbone without weights."""
    backbone = object.__new__(family)
    backbone.name, backbone.processor = "bare", SimpleNamespace(image_processor=images)
    backbone.model = SimpleNamespace(config=SimpleNamespace(model_type="bare", vision_config=SimpleNamespace(**vision)))
    return backbone


def encoded(backbone, pictures):
    return {"input_ids": torch.zeros(1, 1), **backbone.processor.image_processor(pictures, return_tensors="pt")}


@pytest.mark.parametrize(("patch", "merge", "frames"), [(8, 2, 2), (14, 2, 2), (4, 3, 1)])
def test_flattened_patches_are_unfolded_to_the_pictures_and_folded_back_to_the_bit(patch, merge, frames):
    side = patch * merge
    images = Qwen2VLImageProcessorPil(
        patch_size=patch, merge_size=merge, temporal_patch_size=frames, size={"shortest_edge": side**2, "longest_edge": 10**6}
    )
    backbone = bare(QwenVL, images, patch_size=patch, spatial_merge_size=merge, temporal_patch_size=frames)
    pictures = [noise(3 * side, 2 * side), noise(side, 4 * side)]  # of sizes that are not resized
    inputs = encoded(backbone, pictures)
    found = to_pictures("x", backbone, inputs)
    for picture, own in zip(found, pictures, strict=True):
        assert picture.dtype == torch.float32
        assert picture.shape == (frames, 3, own.height, own.width)
        torch.testing.assert_close(picture, shown(own).expand_as(picture), rtol=0, atol=1e-6)
    unfolded = backbone.picture_layout.unfold(backbone, inputs)
    assert torch.equal(backbone.picture_layout.fold(backbone, unfolded), inputs["pixel_values"])
    torch.testing.assert_close(from_pictures("x", backbone, found, inputs["pixel_values"]), inputs["pixel_values"])


@pytest.mark.parametrize("settings", [{}, {"do_normalize": False}, {"do_normalize": False, "do_rescale": False}], ids=str)
def test_every_normalisation_is_undone_and_done_again(settings):
    size = {"height": 20, "width": 20}
    images = CLIPImageProcessorPil(size=size, crop_size=size, **settings)
    backbone = bare(Llava, images, image_size=20)
    inputs = encoded(backbone, [noise(20, 20), noise(20, 20).rotate(90)])
    inputs["pixel_values"] = inputs["pixel_values"].float()
    found = to_pictures("x", backbone, inputs)
    torch.testing.assert_close(found[0][0], shown(noise(20, 20)), rtol=0, atol=1e-6)
    pixels = from_pictures("x", backbone, found, inputs["pixel_values"])
    torch.testing.assert_close(pixels, inputs["pixel_values"], rtol=1e-6, atol=1e-6)


def test_a_changed_picture_is_encoded_as_the_processor_would(model):
    side = 28 if model.backbone.config.model_type == "llava" else 64
    picture = noise(side, side)
    inputs, flipped = (model.backbone.encode([p], ["What?"]) for p in (picture, picture.transpose(Image.Transpose.ROTATE_180)))
    (whole,) = to_pictures("x", model.backbone, inputs)
    pixels = from_pictures("x", model.backbone, [whole.flip(-1, -2)], inputs["pixel_values"])
    torch.testing.assert_close(pixels, flipped["pixel_values"], rtol=0, atol=1e-6)


def test_pixels_keep_their_dtype_and_are_not_written_into(model, picture):
    inputs = model.backbone.encode([picture], ["What?"])
    half = inputs["pixel_values"].bfloat16()
    before = half.clone()
    pictures = to_pictures("x", model.backbone, {**inputs, "pixel_values": half})
    for each in pictures:
        each += 1
    assert torch.equal(half, before)
    assert from_pictures("x", model.backbone, pictures, half).dtype == torch.bfloat16


def test_what_cannot_be_turned_into_pictures_is_refused(model, picture):
    backbone = model.backbone
    inputs = backbone.encode([picture], ["What?"])
    with pytest.raises(PromptError, match="x changes the picture: give one, or leave x off"):
        to_pictures("x", backbone, backbone.encode([None], ["What?"]))
    with pytest.raises(ModelError, match=r"no processor says them: use mgap\.wrap"):
        require_layout("x", mgap.Model(type(backbone)(backbone.model)).backbone)
    if backbone.config.model_type == "llava":
        with pytest.raises(ModelError, match="its pictures are 3 x 28 x 14, not 3 x 28 x 28"):
            to_pictures("x", backbone, {**inputs, "pixel_values": inputs["pixel_values"][..., :14]})
    else:
        video = torch.full_like(inputs["input_ids"], backbone.config.video_token_id)
        with pytest.raises(PromptError, match="x changes pictures, not videos"):
            to_pictures("x", backbone, {"input_ids": video})
