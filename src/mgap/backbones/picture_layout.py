"""Turn encoded pixels back into pictures, and pictures into pixels, for methods that change what a picture shows.

A family declares how its pixels hold whole pictures (`picture_layout`). One that cuts pictures into tiles declares nothing:
changing every tile is not changing the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from mgap.backbones.base import Backbone, families_that
from mgap.backbones.picture_seeds import LEVELS, Normalisation
from mgap.errors import ModelError, PromptError


class PictureLayout(Protocol):
    """How the pixels of a batch hold its pictures, each [N, 3, height, width]; the N are equal frames of one picture."""

    def unfold(self, backbone: Backbone, inputs: Mapping[str, Tensor]) -> list[Tensor]: ...

    def fold(self, backbone: Backbone, pictures: Sequence[Tensor]) -> Tensor: ...


class FixedGrid:
    """Pixels [pictures, 3, side, side]: every picture is brought to the vision tower's own size."""

    def unfold(self, backbone: Backbone, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        pixels, side = inputs[backbone.pixel_keys[0]], backbone.config.vision_config.image_size
        if pixels.shape[1:] != (3, side, side):
            size = " x ".join(map(str, pixels.shape[1:]))
            raise ModelError(f"{backbone.name}: its pictures are {size}, not 3 x {side} x {side}; they may be padded or tiles")
        return list(pixels.split(1))

    def fold(self, backbone: Backbone, pictures: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        return torch.cat(list(pictures))


class FlattenedPatches:
    """Pixels [patches, 3 * frames * patch * patch] and `image_grid_thw`; patches that become one token follow each other."""

    def unfold(self, backbone: Backbone, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        frames, patch, merge = self._sizes(backbone)
        parts = [inputs[backbone.pixel_keys[0]][rows] for rows in backbone.pictures(inputs)]
        pictures = []
        for part, (times, rows, columns) in zip(parts, inputs["image_grid_thw"].tolist(), strict=True):
            patches = part.reshape(times, rows // merge, columns // merge, merge, merge, 3, frames, patch, patch)
            pixels = patches.permute(0, 6, 5, 1, 3, 7, 2, 4, 8)
            pictures.append(pixels.reshape(times * frames, 3, rows * patch, columns * patch))
        return pictures

    def fold(self, backbone: Backbone, pictures: Sequence[Tensor]) -> Tensor:
        frames, patch, merge = self._sizes(backbone)
        parts = []
        for picture in pictures:
            rows, columns = (side // (patch * merge) for side in picture.shape[-2:])
            pixels = picture.reshape(-1, frames, 3, rows, merge, patch, columns, merge, patch)
            parts.append(pixels.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * frames * patch * patch))
        return torch.cat(parts)

    def _sizes(self, backbone: Backbone) -> tuple[int, int, int]:
        """Frames of a patch, its side in pixels, and the side in patches of what becomes one token."""
        vision = backbone.config.vision_config
        return vision.temporal_patch_size, vision.patch_size, vision.spatial_merge_size


def require_layout(name: str, backbone: Backbone) -> tuple[PictureLayout, Normalisation]:
    """How a model's pixels hold whole pictures; refuses, for the method `name`, a model of which that is not known."""
    layout, normalisation = backbone.picture_layout, Normalisation.of(backbone.processor)
    if layout is None:
        raise ModelError(
            f"{name} changes whole pictures, and {backbone.config.model_type} cuts them into tiles or has not been checked; "
            f"checked: {', '.join(families_that('picture_layout'))}"
        )
    if normalisation is None:
        raise ModelError(
            f"{name} needs the mean and std of {backbone.name}'s pixels, and no processor says them: "
            "use mgap.wrap(model, processor)"
        )
    return layout, normalisation


def to_pictures(name: str, backbone: Backbone, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The pictures of encoded inputs, each [N, 3, height, width] in 0..1 and float32.

    Refuses, for the method `name`, inputs without a picture or with a video.
    """
    video = getattr(backbone.config, "video_token_id", None)
    if video is not None and bool((inputs["input_ids"] == video).any()):
        raise PromptError(f"{name} changes pictures, not videos: give pictures only, or leave {name} off")
    if backbone.pixel_keys[0] not in inputs:
        raise PromptError(f"{name} changes the picture: give one, or leave {name} off")
    layout, normalisation = require_layout(name, backbone)
    pictures = layout.unfold(backbone, inputs)
    mean, std = _scale(normalisation, pictures[0].device)
    return [(pixels.float() * std + mean).clamp(0, 1) for pixels in pictures]


def from_pictures(name: str, backbone: Backbone, pictures: Sequence[Tensor], like: Tensor) -> Tensor:
    """Pixels that show these pictures, of the sizes that `to_pictures` gave them; `like` are the pixels that they replace."""
    layout, normalisation = require_layout(name, backbone)
    mean, std = _scale(normalisation, like.device)
    return layout.fold(backbone, [(picture - mean) / std for picture in pictures]).to(like.dtype)


def _scale(normalisation: Normalisation, device: torch.device) -> tuple[Tensor, Tensor]:
    """The mean and std of pictures in 0..1, [3, 1, 1] each."""
    white = (LEVELS - 1) * normalisation.factor
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) / white for values in normalisation[:2])
    return mean, std
