"""How hard the pictures of a scene are to read. The truth stays as it is: the same objects, colours and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from PIL import Image, ImageFilter

from mgap.errors import SettingError

LIMITS = {  # the smallest and the largest value of each knob
    "noise": (0.0, 1.0),
    "blur": (0.0, 48.0),
    "light": (0.01, 1.0),
    "size": (0.1, 1.0),  # the smallest things of a scene are then one or two pixels wide
    "crowding": (0.0, 1.0),
    "cut": (0.0, 0.5),  # half of every thing stays inside the picture
}
FULL = 255  # brightness of white


@dataclass(frozen=True)
class Difficulty:
    """Knobs that make pictures harder to read; the defaults change nothing.

    `size`, `crowding` and `cut` change where and how large things are drawn, in this order. `blur`, `light` and `noise` change
    the finished picture, in this order.
    """

    noise: float = 0.0  # standard deviation in every pixel and channel, as a share of full brightness
    blur: float = 0.0  # standard deviation of a Gaussian in pixels of a 96-pixel picture; it grows with the picture
    light: float = 1.0  # share of the brightness that is left
    size: float = 1.0  # width and height of things, as a share of the usual
    crowding: float = 0.0  # things are moved by this share of their way to the middle, where they overlap
    cut: float = 0.0  # things are moved to the nearest edge, by twice this share of their way: at 0.5 it halves them

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:  # nor NaN
                raise SettingError(f"difficulty {name}={value!r:.40} must be a number from {least:g} to {most:g}")

    @classmethod
    def of(cls, knobs: object) -> Difficulty:
        """From plain keys and values, such as {"noise": 0.15}. Unknown knobs are refused."""
        if not isinstance(knobs, Mapping):
            raise SettingError(f"difficulty is {knobs!r:.40}: give knobs and their values, such as noise: 0.15")
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in knobs if name not in known]:
            raise SettingError(f"difficulty has no knob {unknown[0]!r:.40}: choose from {', '.join(known)}")
        return cls(**knobs)

    def move(self, x: float, y: float) -> tuple[float, float]:
        """Where a thing's centre goes; lengths are shares of the picture's side."""
        x, y = x + self.crowding * (0.5 - x), y + self.crowding * (0.5 - y)
        if min(x, 1 - x) <= min(y, 1 - y):
            return x + 2 * self.cut * (round(x) - x), y
        return x, y + 2 * self.cut * (round(y) - y)

    def degrade(self, picture: Image.Image, scale: float, rng: np.random.Generator) -> Image.Image:
        """Blur and darken a finished picture and add noise to it; `scale` is how many times the usual side it has."""
        if self.blur:
            picture = picture.filter(ImageFilter.GaussianBlur(self.blur * scale))
        if self.light == 1 and not self.noise:
            return picture
        levels = np.asarray(picture) * float(self.light)  # [side, side, 3]
        if self.noise:
            levels = levels + rng.normal(0, self.noise * FULL, levels.shape)
        return Image.fromarray(np.rint(levels).clip(0, FULL).astype(np.uint8))


USUAL = Difficulty()
