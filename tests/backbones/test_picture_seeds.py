"""Seeds of pictures: the same from pixels in every dtype, for every level, with a processor and without."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, Qwen2VLImageProcessorPil

from mgap.backbones.base import Backbone
from mgap.backbones.picture_seeds import LEVELS, USUAL, exact_pixels, picture_seed
from mgap.backbones.qwen_vl import QwenVL

WAYS = {
    "bfloat16": lambda x: x.bfloat16(),
    "float16": lambda x: x.half(),
    "float16, then bfloat16": lambda x: x.half().bfloat16(),
    "float64": lambda x: x.double(),
}


class Processor:
    def __init__(self, images):
        self.image_processor = images


def bare(model):
    """The backbone as `mgap.attach` sees a transformers model."""
    return Backbone.of(model.backbone.model)


def every_level() -> Image.Image:
    """64 x 64 pixels with all levels in all channels, each channel in another order."""
    ramp = np.arange(4096).reshape(64, 64) % LEVELS
    return Image.fromarray(np.stack([ramp, ramp[::-1], ramp.T], -1).astype(np.uint8))


def processed(kind, mean, std):
    """A backbone without a model, its processor, and the pixels of `every_level`."""
    if kind == "clip":
        images = CLIPImageProcessorPil(do_resize=False, do_center_crop=False, image_mean=mean, image_std=std)
        backbone = object.__new__(Backbone)
    else:
        sizes = {"shortest_edge": 64 * 64, "longest_edge": 64 * 64}
        images = Qwen2VLImageProcessorPil(patch_size=8, size=sizes, image_mean=mean, image_std=std)
        backbone = object.__new__(QwenVL)
    backbone.processor = Processor(images)
    return backbone, images(every_level(), return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("usual", USUAL, ids=["half", "clip", "imagenet"])
@pytest.mark.parametrize("kind", ["clip", "qwen"])
def test_every_level_of_every_channel_is_found_again_after_a_cast(kind, usual, way):
    backbone, pixels = processed(kind, usual.mean, usual.std)
    assert exact_pixels(backbone, WAYS[way](pixels)).equal(exact_pixels(backbone, pixels))
    assert picture_seed(backbone, {"pixel_values": WAYS[way](pixels)}) == picture_seed(backbone, {"pixel_values": pixels})
    backbone.processor = None
    assert exact_pixels(backbone, WAYS[way](pixels)).equal(exact_pixels(backbone, pixels))


@pytest.mark.parametrize(("usual", "merged"), list(zip(USUAL, (0, 1, 0), strict=True)), ids=["half", "clip", "imagenet"])
def test_float32_pixels_are_kept_but_for_levels_that_bfloat16_cannot_tell_apart(usual, merged):
    backbone, pixels = processed("clip", usual.mean, usual.std)
    assert len((exact_pixels(backbone, pixels)[0] != pixels[0]).nonzero()) == merged * 16  # each level is there 16 times


@pytest.mark.parametrize("usual", USUAL, ids=["half", "clip", "imagenet"])
def test_the_rounding_of_torchvision_gives_the_same_pixels(usual):
    backbone, pixels = processed("clip", usual.mean, usual.std)
    levels = torch.tensor(np.asarray(every_level())).permute(2, 0, 1).float()
    mean, std = (torch.tensor(values).view(3, 1, 1) * 255 for values in (usual.mean, usual.std))
    assert exact_pixels(backbone, (levels - mean) / std).equal(exact_pixels(backbone, pixels)[0])


@pytest.mark.parametrize("settings", [{"do_normalize": False}, {"do_normalize": False, "do_rescale": False}])
@pytest.mark.parametrize("way", ["bfloat16", "float16", "float64"])
def test_processors_that_leave_a_step_out_are_followed(settings, way):
    images = CLIPImageProcessorPil(do_resize=False, do_center_crop=False, **settings)
    backbone = object.__new__(Backbone)
    backbone.processor = Processor(images)
    pixels = images(every_level(), return_tensors="pt")["pixel_values"].float()
    found = exact_pixels(backbone, pixels)
    assert not found.equal(pixels.bfloat16().float()) or "do_rescale" in settings
    assert exact_pixels(backbone, WAYS[way](pixels)).equal(found)


@pytest.mark.parametrize("silent", [object(), Processor(object()), Processor(CLIPImageProcessorPil(image_mean=0.5))])
def test_a_processor_that_does_not_say_its_values_is_taken_for_a_usual_one(silent):
    backbone, pixels = processed("clip", *USUAL[1][:2])
    expected = exact_pixels(backbone, pixels)
    backbone.processor = silent
    assert exact_pixels(backbone, pixels.half()).equal(expected)


def test_zeros_of_padding_stay_zeros():
    backbone, pixels = processed("clip", *USUAL[1][:2])
    padded = torch.cat([pixels, torch.zeros_like(pixels)])
    found = exact_pixels(backbone, padded.half())
    assert found[0].equal(exact_pixels(backbone, pixels)[0])
    assert found[1].count_nonzero() == 0


def test_pixels_that_are_no_levels_are_rounded_to_bfloat16(model, picture):
    pixels = model.backbone.encode([picture], ["What?"])["pixel_values"] * 1.01
    for backbone in (model.backbone, bare(model)):
        assert exact_pixels(backbone, pixels).equal(pixels.bfloat16().float())
        assert exact_pixels(backbone, pixels.bfloat16()).equal(pixels.bfloat16().float())


def test_pictures_that_differ_in_one_level_have_different_seeds(model, picture):
    levels = np.asarray(picture.resize((64, 64))).copy()
    levels[30:34, 30:34] //= 2
    one, other = (model.backbone.encode([p], ["What?"]) for p in (picture.resize((64, 64)), Image.fromarray(levels)))
    seeds = [picture_seed(model.backbone, {"pixel_values": inputs["pixel_values"]}) for inputs in (one, other)]
    assert seeds[0] != seeds[1]
    assert picture_seed(model.backbone, {"pixel_values": one["pixel_values"]}, salt="1") != seeds[0]


def test_a_model_without_its_processor_has_the_same_seeds(model, picture):
    pixels = model.backbone.encode([picture], ["What?"])["pixel_values"]
    seeds = {picture_seed(b, {"pixel_values": cast(pixels)}) for b in (model.backbone, bare(model)) for cast in WAYS.values()}
    assert len(seeds) == 1
