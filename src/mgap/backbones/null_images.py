"""Null images: pictures without content, to read a model's prior (methods/mgap.md, section 6).

On dynamic-resolution models each kind has a different number of image tokens, hence a different subspace. So the choice is
stored with whatever is fitted from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from mgap.errors import SettingError
from mgap.io.images import check_size

NULL_IMAGES = ("black336", "black_same_size", "mean_colour", "noise", "no_image")
SIZED = ("black_same_size", "mean_colour", "noise")  # those that take a size
NOISE = 0.35  # standard deviation of "noise", as a share of full brightness


def check_null_image(kind: str, size: tuple[int, int] | None) -> None:
    """Refuse an unknown kind, a missing size, and one that was asked for where this kind has no use for it."""
    if kind not in NULL_IMAGES:
        raise SettingError(f"unknown null image {kind!r}: choose from {', '.join(NULL_IMAGES)}")
    if kind == "black_same_size" and size is None:
        raise SettingError("null image 'black_same_size' needs the size of the picture: pass size=(width, height)")
    if size is not None and kind not in SIZED:
        raise SettingError(f"null image {kind!r} has no size to choose: leave size out, or take {' or '.join(SIZED)}")


def null_image(kind: str, processor: Any, size: tuple[int, int] | None = None) -> Image.Image | None:
    """Build a null image; `size` (width, height) is that of the picture it replaces. Returns None for "no_image"."""
    size = size if kind in SIZED else None
    check_null_image(kind, size)
    if kind == "no_image":
        return None
    if size is not None:
        check_size("the null image", size)
    if kind == "noise":
        return _noise(size or _own_size(processor))
    if kind != "mean_colour":
        return Image.new("RGB", size or (336, 336))
    mean = getattr(processor.image_processor, "image_mean", None) or (0.5, 0.5, 0.5)  # normalised to zero
    red, green, blue = (round(255 * channel) for channel in mean)
    return Image.new("RGB", size or (336, 336), (red, green, blue))


def _noise(size: tuple[int, int]) -> Image.Image:
    """Noise on grey, always the same: a picture in which nothing can be seen, though something might be there."""
    width, height = size
    values = np.random.default_rng(0).normal(0.5, NOISE, (height, width, 3))
    return Image.fromarray((values.clip(0, 1) * 255).astype(np.uint8))


def _own_size(processor: Any) -> tuple[int, int]:
    """The size that every picture is brought to, so that noise is not smoothed; 336 x 336 where sizes vary."""
    crop = getattr(processor.image_processor, "crop_size", None) or {}
    return crop.get("width", 336), crop.get("height", 336)
