"""Four overlapping crops of a picture, one at each corner, and the quarters of its image tokens that belong to them.

A crop is a square of the side that the model brings every picture to; where it leaves the picture it is black. A picture with a
side of more than two crops is first brought to a square of 4/3 of a crop's side. Models that keep a picture's proportions have
no such side: there a crop has a share of the picture's width and height.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from mgap.backbones.asked_rows import Asked, asked_rows
from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import split_rows
from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.kinds.branch import check_length
from mgap.methods.kinds.other_pictures import show_pictures
from mgap.methods.kinds.paired_forward import Inputs

CORNERS = ("top_left", "top_right", "bottom_left", "bottom_right")  # crops and quarters are in this order
SHARE = 0.6  # of width and height, where there is no side


def cut(picture: Image.Image, corner: int, side: int | None, share: float | None) -> Image.Image:
    """The crop at a corner: of this share of the picture's width and height; None: a square of this side, if there is one."""
    if share is None and side is not None:
        if max(picture.size) > 2 * side:
            picture = picture.resize((4 * side // 3, 4 * side // 3))
        width, height = side, side
    else:
        width, height = (max(1, round((share or SHARE) * length)) for length in picture.size)
    left, top = (picture.width - width) * (corner % 2), (picture.height - height) * (corner // 2)
    return picture.crop((left, top, left + width, top + height))


class CornerCrops:
    """For the method `name`: the prompts of the main rows about crops of the pictures that are being asked about."""

    def __init__(self, name: str, backbone: Backbone, share: float | None) -> None:
        if not backbone.maps_pictures:
            raise ModelError(
                f"{name} needs a picture's tokens as one map of rows and columns, which {backbone.config.model_type} is not "
                f"known to have: choose a model that does not cut pictures into tiles, or leave {name} off"
            )
        backbone.render("?")  # needs the processor: fails now, not later
        self.name, self.backbone, self.share = name, backbone, share

    def asked(self, main: Inputs) -> tuple[Asked, ...]:
        """What is asked about each picture; refuses a generation that nobody has noted anything of."""
        asked = asked_rows(self.backbone.model, len(self.backbone.pictures(main)))
        if not asked:
            raise UnsupportedDecoding(
                f"{self.name} cuts the picture itself, and a generate of your own has its pixels only: call model.answer"
            )
        return asked

    def __call__(self, main: Inputs, corners: Sequence[int]) -> Inputs:
        """The main rows with a crop in place of each picture, at these corners."""
        rows, side, pairs = split_rows(main), self.backbone.input_side, zip(self.asked(main), corners, strict=True)
        crops = [cut(asked.picture, corner, side, self.share) for asked, corner in pairs]
        shown = [crop for crop in crops for _ in range(len(rows) // len(crops))]  # beams repeat rows, not pictures
        return check_length(self.name, self.backbone, show_pictures(self.backbone, main, rows, shown))


def quarters_of(images: Tensor, maps: Sequence[tuple[int, int]]) -> Tensor:
    """The quarter that each position shows [B, T], an index of CORNERS; len(CORNERS) at a position outside the picture.

    `images` are the picture's positions, bool [B, T]; `maps` the rows and columns of each picture. Beams repeat rows, not
    pictures. The middle of an odd number of rows or columns belongs to the lower and right quarters.
    """
    times = len(images) // len(maps)
    tokens = [_quarters(*shape) for shape in maps for _ in range(times)]
    if (found := images.sum(-1).tolist()) != (expected := [len(row) for row in tokens]):
        raise ModelError(
            f"the rows have {found} image tokens, and the maps of their pictures {expected}: give one picture a row, and a "
            "model that does not cut pictures into tiles"
        )
    outside = torch.full(images.shape, len(CORNERS), device=images.device)
    return outside.masked_scatter(images, torch.cat(tokens).to(images.device))


def _quarters(rows: int, columns: int) -> Tensor:
    """The quarter of every token of a picture, row by row."""
    below, right = torch.arange(rows) >= rows // 2, torch.arange(columns) >= columns // 2
    return (2 * below.unsqueeze(1) + right).flatten()


def sum_quarters(attention: Tensor, quarters: Tensor) -> Tensor:
    """The sums [B, 4] of attention [B, positions so far], given the quarters of the prompt's positions [B, prompt]."""
    prompt = attention[:, : quarters.shape[1]]
    quarters = quarters.to(prompt.device)
    return torch.stack([prompt.where(quarters == corner, 0.0).sum(-1) for corner in range(len(CORNERS))], -1)
