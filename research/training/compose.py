"""Draw thousands of scenes on the GPU: sprites placed with affine grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mgap.pocket.drawing import COLOURS, TRAINING_STYLES
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import MOST, Scene
from mgap.pocket.themes import THEMES

Number = TypeVar("Number", int, Tensor)
COLOUR_NAMES = tuple(COLOURS)
THEME_NAMES = tuple(THEMES)


@dataclass
class Layout:
    """Scenes as tensors: one row per scene, one column per object, drawn from left to right."""

    sprite: Tensor  # [B, K] long: name, style and colour in one number
    inverse: Tensor  # [B, K, 2, 3]: from picture to sprite coordinates, both -1..1
    drawn: Tensor  # [B, K] bool: this column has an object
    theme: Tensor  # [B] long
    horizon: Tensor  # [B]

    def to(self, device: torch.device | str) -> Layout:
        return Layout(**{name: value.to(device, non_blocking=True) for name, value in self.__dict__.items()})


def sprite_number(name: Number, style: Number, colour: Number) -> Number:
    """Index of a drawing in the painter's bank."""
    return (name * len(TRAINING_STYLES) + style) * len(COLOURS) + colour


def lay_out(scenes: list[Scene]) -> Layout:
    """Scenes as tensors."""
    sprite = np.zeros((len(scenes), MOST), dtype=np.int64)
    inverse = np.zeros((len(scenes), MOST, 2, 3), dtype=np.float32)
    drawn = np.zeros((len(scenes), MOST), dtype=bool)
    for row, scene in enumerate(scenes):
        for column, thing in enumerate(scene.things):
            numbers = NAMES.index(thing.name), TRAINING_STYLES.index(thing.style), COLOUR_NAMES.index(thing.colour)
            sprite[row, column] = sprite_number(*numbers)
            drawn[row, column] = True
            inverse[row, column] = thing.to_sprite()
    theme = np.array([THEME_NAMES.index(scene.theme) for scene in scenes])
    horizon = np.array([scene.horizon for scene in scenes], dtype=np.float32)
    return Layout(*(torch.from_numpy(array) for array in (sprite, inverse, drawn, theme, horizon)))


class Painter:
    """Holds every training sprite on the device and draws layouts with them."""

    def __init__(self, device: torch.device | str, side: int) -> None:
        self.device, self.side = device, side
        sprites = [
            np.asarray(kind.sprite(style, colour))
            for kind in OBJECTS.values()
            for style in TRAINING_STYLES
            for colour in COLOURS
        ]
        bank = torch.from_numpy(np.stack(sprites)).to(device).permute(0, 3, 1, 2).float() / 255  # [n, 4, s, s]
        bank[:, :3] *= bank[:, 3:]  # premultiplied, so that edges blend
        self.bank = bank.half()
        self.above = torch.tensor([theme.above for theme in THEMES.values()], device=device) / 255  # [themes, 3]
        self.below = torch.tensor([theme.below for theme in THEMES.values()], device=device) / 255

    def paint(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Pictures [B, 3, side, side] in 0..1, and for every pixel the column of its visible object (-1: none)."""
        picture = self._backdrop(layout)
        owner = torch.full_like(picture[:, 0], -1, dtype=torch.long)  # [B, side, side]
        for column in range(layout.sprite.shape[1]):
            grid = F.affine_grid(layout.inverse[:, column], [len(picture), 4, self.side, self.side], align_corners=False)
            drawn = F.grid_sample(self.bank[layout.sprite[:, column]], grid.to(self.bank.dtype), align_corners=False)
            drawn = drawn.float() * layout.drawn[:, column, None, None, None]
            picture = picture * (1 - drawn[:, 3:]) + drawn[:, :3]
            owner = torch.where(drawn[:, 3] > 0.5, column, owner)
        picture = picture + torch.randn_like(picture[:, :1]) * (3 / 255)
        return picture.clamp(0, 1), owner

    def _backdrop(self, layout: Layout) -> Tensor:
        count = len(layout.theme)
        rows = torch.arange(self.side, device=self.device) / self.side
        below = (rows[None] > layout.horizon[:, None])[:, None, :, None]  # [B, 1, side, 1]
        base = torch.where(below, self.below[layout.theme][:, :, None, None], self.above[layout.theme][:, :, None, None])
        tint = torch.randn(count, 3, 1, 1, device=self.device) * (8 / 255)
        coarse = torch.randn(count, 1, 8, 8, device=self.device) * (9 / 255)
        texture = F.interpolate(coarse, size=(self.side, self.side), mode="bicubic")
        return base.expand(-1, -1, -1, self.side) + tint + texture

    def random_layout(self, count: int) -> Layout:
        """Uniform classes, styles, colours and positions, for training the vision tower."""
        shape = (count, MOST)
        device = self.device
        sizes = torch.tensor([kind.size for kind in OBJECTS.values()], device=device)
        name = torch.randint(len(NAMES), shape, device=device)
        number = torch.randint(2, MOST + 1, (count, 1), device=device)
        size = sizes[name] * (4 / number).clamp(max=1) ** 0.4 * (0.8 + 0.4 * torch.rand(shape, device=device))
        stretch = 0.88 + 0.26 * torch.rand(shape, device=device)
        width, height = size * stretch, size / stretch
        x = width / 2 + torch.rand(shape, device=device) * (1 - width)
        y = height / 2 + torch.rand(shape, device=device) * (1 - height)
        angle = (torch.rand(shape, device=device) - 0.5) * np.deg2rad(28)
        mirror = torch.where(torch.rand(shape, device=device) < 0.5, -1.0, 1.0)
        cos, sin = angle.cos(), angle.sin()
        rotation = torch.stack([torch.stack([cos, sin], -1) * (mirror / width)[..., None],
                                torch.stack([-sin, cos], -1) / height[..., None]], -2)  # [B, K, 2, 2]  # fmt: skip
        shift = -rotation @ torch.stack([2 * x - 1, 2 * y - 1], -1)[..., None]
        style = torch.randint(len(TRAINING_STYLES), shape, device=device)
        colour = torch.randint(len(COLOURS), shape, device=device)
        return Layout(
            sprite=sprite_number(name, style, colour),
            inverse=torch.cat([rotation, shift], -1),
            drawn=torch.arange(MOST, device=device)[None] < number,
            theme=torch.randint(len(THEMES), (count,), device=device),
            horizon=0.4 + 0.22 * torch.rand(count, device=device),
        )


def patch_labels(layout: Layout, owner: Tensor, grid: int) -> Tensor:
    """Which classes and colours cover each patch: [B, grid * grid, names + colours] in {0, 1}."""
    count, columns = layout.sprite.shape
    labels = torch.zeros(count, grid * grid, len(NAMES) + len(COLOURS), device=owner.device)
    colour = layout.sprite % len(COLOURS)
    name = layout.sprite // (len(COLOURS) * len(TRAINING_STYLES))
    for column in range(columns):
        share = F.adaptive_avg_pool2d((owner == column).float().unsqueeze(1), grid).flatten(1)  # [B, patches]
        covered = (share > 0.2).float()
        for index in (name[:, column], len(NAMES) + colour[:, column]):
            target = index[:, None, None].expand(-1, grid * grid, 1)
            labels.scatter_reduce_(2, target, covered[..., None], reduce="amax")
    return labels
