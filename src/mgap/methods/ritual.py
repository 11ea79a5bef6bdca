"""RITUAL, random image transformations (Woo et al., 2024, arXiv 2405.17821): add what a transformed copy of the picture says.

    s = l(x) + alpha l(T(x)),   s[v] = -inf where l[v] < max l + ln(beta),   T one of six transformations

What both views support wins. Cost: 2 forwards per token, and every picture goes through the vision tower twice. T is drawn once
per picture, from `seed` and the picture itself, so it depends neither on the batch nor on its order; the authors draw it from
a global generator. They transform the picture as it was opened. We transform what the processor made of it, in floats, and keep
its size, so that both branches have the same placeholders (backbones/picture_layout.py says for which models). The weights sum
to 1 + alpha, so sampling is sharper than plain decoding at the same temperature. The authors' code: alpha 3, beta 0.1. The
paper also reports RITUAL with VCD's or M3ID's branch; the released loop runs one or the other, and so do we.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mgap.backbones.base import Backbone
from mgap.backbones.picture_layout import from_pictures, require_layout, to_pictures
from mgap.backbones.picture_seeds import picture_seed
from mgap.methods.base import Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.branch import BranchMethod, Build, plausible
from mgap.methods.kinds.paired_forward import Inputs
from mgap.settings import check_choice, check_count, check_share, check_strength

RADIUS = 6  # of the blur, in pixels
RATIOS = 3 / 4, 4 / 3  # of a crop's width to its height
Box = tuple[int, int, int, int]  # top, left, height, width


def rotate(pictures: Tensor, degrees: float) -> Tensor:
    """Counter-clockwise about the centre: nearest pixels, black corners, the same size."""
    height, width = pictures.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    source = torch.tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]])  # of each pixel, in -1..1
    places = F.affine_grid(source.to(pictures).expand(len(pictures), 2, 3), list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, places, mode="nearest", align_corners=False)


def blur_kernel(sigma: float) -> Tensor:
    """The weights of a pixel and its neighbours, [2 RADIUS + 1] in float64."""
    offsets = torch.arange(-RADIUS, RADIUS + 1, dtype=torch.float64)
    return (-((offsets / sigma) ** 2) / 2).softmax(0)


def blur(pictures: Tensor, sigma: float) -> Tensor:
    """Gaussian, with reflected edges."""
    blurred, weights = F.pad(pictures, (RADIUS,) * 4, mode="reflect"), blur_kernel(sigma).tolist()
    for dim in (-2, -1):
        size = pictures.shape[dim]
        blurred = reduce(torch.add, (weight * blurred.narrow(dim, n, size) for n, weight in enumerate(weights)))
    return blurred


def crop(pictures: Tensor, box: Box) -> Tensor:
    """A part of the picture, enlarged to the whole one's size."""
    top, left, height, width = box
    part, size = pictures[..., top : top + height, left : left + width], list(pictures.shape[-2:])
    return F.interpolate(part, size=size, mode="bilinear", align_corners=False, antialias=True)


def draw_box(draw: Random, height: int, width: int) -> Box:
    """A part of 8 to 100 percent of the area; the largest one in the middle if ten draws do not fit into the picture."""
    for _ in range(10):
        area, ratio = height * width * draw.uniform(0.08, 1), math.exp(draw.uniform(*map(math.log, RATIOS)))
        rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            return draw.randint(0, height - rows), draw.randint(0, width - columns), rows, columns
    ratio = min(max(width / height, RATIOS[0]), RATIOS[1])
    rows, columns = min(height, round(width / ratio)), min(width, round(height * ratio))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def grey(pictures: Tensor) -> Tensor:
    """Brightness [N, 1, height, width]."""
    weights = torch.tensor([0.2989, 0.587, 0.114]).to(pictures).view(3, 1, 1)
    return (weights * pictures).sum(-3, keepdim=True)


def blend(pictures: Tensor, other: Tensor | float, factor: float) -> Tensor:
    """The other at factor 0, the pictures at 1, and beyond them above 1."""
    return (factor * pictures + (1 - factor) * other).clamp(0, 1)


def shift_hue(pictures: Tensor, turn: float) -> Tensor:
    """Turn the hue by a share of the colour circle; brightest and darkest channel stay the same."""
    red, green, blue = pictures.split(1, dim=-3)
    top = pictures.amax(-3, keepdim=True)
    spread = top - pictures.amin(-3, keepdim=True)
    unit = spread.masked_fill(spread == 0, 1)  # grey has no hue
    hue = torch.where(top == red, (green - blue) / unit, (blue - red) / unit + 2)  # in sixths of the circle
    hue = torch.where((top == blue) & (top > red) & (top > green), (red - green) / unit + 4, hue) + 6 * turn
    distance = (torch.tensor([5.0, 3.0, 1.0]).to(pictures).view(3, 1, 1) + hue) % 6
    return top - spread * torch.minimum(distance, 4 - distance).clamp(0, 1)


JITTER: dict[str, Callable[[Tensor, float], Tensor]] = {
    "brightness": lambda pictures, factor: blend(pictures, 0.0, factor),
    "contrast": lambda pictures, factor: blend(pictures, grey(pictures).mean((-3, -2, -1), keepdim=True), factor),
    "saturation": lambda pictures, factor: blend(pictures, grey(pictures), factor),
    "hue": shift_hue,
}


def jitter(pictures: Tensor, factors: Mapping[str, float]) -> Tensor:
    """Change the colours in the order of `factors`, by names of JITTER."""
    for name, factor in factors.items():
        pictures = JITTER[name](pictures, factor)
    return pictures


def draw_factors(draw: Random) -> dict[str, float]:
    """Factors from 0 to 2, a turn of the hue by at most a half, in any order."""
    drawn = {name: draw.uniform(-0.5, 0.5) if name == "hue" else draw.uniform(0, 2) for name in JITTER}
    return {name: drawn[name] for name in draw.sample(list(drawn), len(drawn))}


TRANSFORMS: dict[str, Callable[[Tensor, Random], Tensor]] = {  # of pictures [N, 3, height, width] in 0..1
    "horizontal_flip": lambda pictures, _: pictures.flip(-1),
    "vertical_flip": lambda pictures, _: pictures.flip(-2),
    "rotation": lambda pictures, draw: rotate(pictures, draw.uniform(-180, 180)),
    "colour_jitter": lambda pictures, draw: jitter(pictures, draw_factors(draw)),
    "gaussian_blur": lambda pictures, draw: blur(pictures, draw.uniform(1.5, 2)),
    "crop": lambda pictures, draw: crop(pictures, draw_box(draw, *pictures.shape[-2:])),
}
RANDOM = "random"


@dataclass(frozen=True)
class RITUAL(BranchMethod):
    """Random image transformations. `transform` is one of TRANSFORMS, or "random": drawn for every picture."""

    name: ClassVar[str] = "ritual"
    summary: ClassVar[str] = "add what the model says of a randomly transformed copy of the picture"
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0, "beta": 0.0})

    alpha: float = 3.0
    beta: float = 0.1
    transform: str = RANDOM
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength("alpha", self.alpha)
        check_share("beta", self.beta)
        check_choice("transform", self.transform, (RANDOM, *TRANSFORMS))
        check_count("seed", self.seed, least=0)

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:
        require_layout(self.name, backbone)
        return super().prepare(backbone, tap)

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        pictures, key = to_pictures(self.name, backbone, main), backbone.pixel_keys[0]
        parts = [main[key][rows] for rows in backbone.pictures(main)]
        draws = [Random(picture_seed(backbone, {key: part}, salt=f"{self.name} {self.seed}")) for part in parts]
        changed = [self.change(picture, draw) for picture, draw in zip(pictures, draws, strict=True)]
        return {**main, key: from_pictures(self.name, backbone, changed, main[key])}

    def change(self, pictures: Tensor, draw: Random) -> Tensor:
        """The transformed pictures; what "random" does where it draws T is what `transform=T` does."""
        drawn = draw.choice(list(TRANSFORMS))
        return TRANSFORMS[drawn if self.transform == RANDOM else self.transform](pictures, draw)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return plausible(main + self.alpha * branch, main, self.beta), {}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:  # noqa: ARG002
        return 1.0, strength
