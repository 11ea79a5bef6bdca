"""Seeds that depend on the picture alone: the same from pixels in float32, bfloat16 and float16.

Processors map 8-bit levels to x = (factor * level - mean) / std, and the model, or its user, may have cast x since. So a seed
comes from the levels, found again from x, and hashed as the float32 pixels that Pillow's processors make of them (torchvision's
round otherwise). Levels that bfloat16 cannot tell apart count as one: with CLIP's mean and std 253 and 254 of blue, with the
other usual values none. Without a processor that says them, the usual values are tried. Zeros may be padding, and are kept.

Pixels that are no such levels, such as a picture that was changed after its processor, are rounded to bfloat16 instead: then
float32 and bfloat16 have the same seed, but float16 may have another. So may a picture of one colour without a processor,
where one 16-bit value can stand for levels of several processors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.image_utils import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)

from mgap.backbones.base import Backbone
from mgap.backbones.shared_vision import digest

LEVELS = 256


class Normalisation(NamedTuple):
    """How a processor maps levels to pixels: x = (factor * level - mean) / std, with a mean and std for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float = 1 / 255

    @classmethod
    def of(cls, processor: Any) -> Normalisation | None:
        """That of a processor; None if it does not say it."""
        images = getattr(processor, "image_processor", None)
        mean, std, factor = (getattr(images, name, None) for name in ("image_mean", "image_std", "rescale_factor"))
        if getattr(images, "do_normalize", None) is False:
            mean, std = (0.0,) * 3, (1.0,) * 3
        if getattr(images, "do_rescale", None) is False:
            factor = 1.0
        if not isinstance(mean, Sequence) or not isinstance(std, Sequence) or factor is None:
            return None
        return cls(tuple(mean), tuple(std), factor)

    def pixels(self, levels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Pixels of levels, rounded as by transformers' processors on Pillow; mean and std broadcast to the levels."""
        return ((levels.double() * self.factor).float() - mean) / std

    def levels(self, pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """The nearest levels of pixels in float32."""
        return ((pixels * std + mean) / self.factor).round().clamp(0, LEVELS - 1)


USUAL = (
    Normalisation(tuple(IMAGENET_STANDARD_MEAN), tuple(IMAGENET_STANDARD_STD)),
    Normalisation(tuple(OPENAI_CLIP_MEAN), tuple(OPENAI_CLIP_STD)),
    Normalisation(tuple(IMAGENET_DEFAULT_MEAN), tuple(IMAGENET_DEFAULT_STD)),
)


@lru_cache(maxsize=16)
def tables(normalisation: Normalisation) -> tuple[Tensor, Tensor]:
    """Float32 pixels of every level, and of the level that stands for it: [channels, LEVELS] each."""
    mean, std = (torch.tensor(values).unsqueeze(-1) for values in (normalisation.mean, normalisation.std))
    levels = torch.arange(LEVELS).expand(len(mean), -1)
    exact = merged = normalisation.pixels(levels, mean, std)
    for _ in range(2):  # twice: at a power of two the nearest level may round to the next bfloat16 below
        levels = normalisation.levels(merged.bfloat16().float(), mean, std)
        merged = normalisation.pixels(levels, mean, std)
    return exact, merged


def picture_seed(backbone: Backbone, inputs: Mapping[str, Tensor], salt: str = "") -> int:
    """A number below 2**64 from one picture's inputs to the vision tower; `salt` separates uses."""
    values = [exact_pixels(backbone, value) if key in backbone.pixel_keys else value for key, value in inputs.items()]
    return int.from_bytes(digest(*values, salt=salt)[:8], "little")


def exact_pixels(backbone: Backbone, pixels: Tensor) -> Tensor:
    """The pixels as a processor gives them in float32, from pixels of any dtype; rounded to bfloat16 if they are no levels."""
    own = None if backbone.processor is None else Normalisation.of(backbone.processor)
    for normalisation in USUAL if own is None else (own,):
        found = _from_levels(backbone, pixels, normalisation)
        if found is not None:
            return found
    return pixels.bfloat16().float()


def _from_levels(backbone: Backbone, pixels: Tensor, normalisation: Normalisation) -> Tensor | None:
    """None if some pixels are no levels."""
    x, is_zero = pixels.float(), pixels == 0
    mean, std = (backbone.per_channel(torch.tensor(values), x) for values in (normalisation.mean, normalisation.std))
    rows = backbone.per_channel(torch.arange(len(normalisation.mean)), x)  # of the tables
    places = (normalisation.levels(x, mean, std) + LEVELS * rows).long()
    exact, merged = (table.flatten().to(x.device) for table in tables(normalisation))
    rounding = 0.6 * torch.finfo(pixels.dtype).eps * x.abs() + 1e-5  # of one cast to 16 bits, or two
    if not bool((((x - exact[places]).abs() <= rounding) | is_zero).all()):
        return None
    return merged[places].masked_fill(is_zero, 0.0)
