"""Pass encoded pictures to a forward: as its argument, or through a hook at the text decoder.

From transformers 5.18 on, `generate` encodes pictures before the first forward, which takes the result (`mm_encoder_outputs`).
Older versions pass pixels to the forward. There we encode the pictures once and send them along with the forward's arguments to
a hook at the text decoder, which puts them at the placeholders as the model itself would. Code that adds rows to a forward, or
shows a picture again, thus works with encoded pictures in every version.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mgap.backbones.base import Backbone, families_that
from mgap.errors import ModelError, UnsupportedDecoding

Call = dict[str, Any]  # named arguments of a forward
ENCODED = "mm_encoder_outputs"  # transformers' name of the argument
_ARGUMENT = "mgap_pictures"  # carries pictures from a forward's arguments to the text decoder


@dataclass(frozen=True, eq=False)
class Carried:
    """Pictures on their way to the text decoder."""

    features: Any  # as returned by the model's get_image_features
    mask: Tensor  # bool [B, T]: the placeholders


class ImageEmbedder:
    """Encoded pictures for the forwards of one model. Call `attach` first, for versions that need the hook."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        unwrap = getattr(backbone.model, "get_base_model", None)  # an adapter's forward has no named arguments
        model = backbone.model if unwrap is None else unwrap()
        self.is_argument = ENCODED in inspect.signature(model.forward).parameters

    def attach(self) -> list[RemovableHandle]:
        return [] if self.is_argument else [self.backbone.language.register_forward_pre_hook(embed_pictures, with_kwargs=True)]

    def encode_pixels(self, name: str, kwargs: Call) -> Call:
        """Replace pixels in the first forward's arguments by encoded pictures, for the method `name`; raises if impossible."""
        if kwargs.get("pixel_values") is None:
            return kwargs
        if self.is_argument:
            raise UnsupportedDecoding(f"{name} was given pixels in a forward: call generate, which encodes them before")
        self._check_family(name)
        encode = self.backbone.model.base_model.get_image_features
        names = {*inspect.signature(encode).parameters, "image_sizes"} - {"output_hidden_states", "return_dict"}
        accepted = {key: value for key, value in kwargs.items() if key in names and value is not None}
        features = by_picture(encode(**accepted, return_dict=True))
        return {**kwargs, "pixel_values": None, **self.arguments(kwargs["input_ids"], features)}

    def features(self, kwargs: Call) -> Any:
        """The encoded pictures among a forward's arguments; None if it has none."""
        if self.is_argument:
            return (kwargs.get(ENCODED) or {}).get("image")
        carried: Carried | None = kwargs.get(_ARGUMENT)
        return None if carried is None else carried.features

    def arguments(self, ids: Tensor, features: Any) -> Call:
        """The arguments that make a forward of rows `ids` [B, T] show these pictures, in the order of the rows."""
        if self.is_argument:
            return {ENCODED: {} if features is None else {"image": features}}
        return {_ARGUMENT: None if features is None else Carried(features, self.backbone.image_mask({"input_ids": ids}))}

    @contextmanager
    def for_generate(self, inputs: Call, features: Any) -> Iterator[Call]:
        """Yield arguments for one `generate` inside the block whose prompts show these pictures."""
        if self.is_argument:
            yield {**inputs, ENCODED: {"image": features}}
            return
        self._check_family("showing a picture again")
        pending = [features]

        def add_to_first(_model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
            return args, {**kwargs, **self.arguments(kwargs["input_ids"], pending.pop())} if pending else kwargs

        handles = [self.backbone.model.register_forward_pre_hook(add_to_first, with_kwargs=True), *self.attach()]
        try:
            yield inputs
        finally:
            for handle in handles:
                handle.remove()

    def _check_family(self, name: str) -> None:
        if not self.backbone.embeds_pictures:
            checked, kind = ", ".join(families_that("embeds_pictures")), self.backbone.config.model_type
            raise UnsupportedDecoding(
                f"{name} needs pictures that are encoded before the first forward, and with transformers "
                f"{transformers.__version__} that has been checked for {checked} only, not for {kind}: "
                "use transformers 5.18 or newer"
            )


def embed_pictures(language: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
    """Pre-hook of the text decoder: put pictures at the placeholders, at every depth that reads them."""
    inner = {key: value for key, value in kwargs.items() if key != _ARGUMENT}
    carried: Carried | None = kwargs.get(_ARGUMENT)
    if carried is None:
        return args, inner
    embeds: Tensor = inner["inputs_embeds"]  # [B, T, d]
    mask, pictures = carried.mask.to(embeds.device), flatten(carried.features.pooler_output).to(embeds)
    if len(pictures) != int(mask.sum()):
        kind = type(language).__name__
        raise ModelError(f"{len(pictures)} encoded tokens for {int(mask.sum())} placeholders: {kind} cannot read them")
    inner["inputs_embeds"] = embeds.masked_scatter(mask.unsqueeze(-1), pictures)
    levels = getattr(carried.features, "deepstack_features", None)
    if levels is not None:
        inner.update(visual_pos_masks=mask, deepstack_visual_embeds=[flatten(level) for level in levels])
    return args, inner


def flatten(part: Any) -> Tensor:
    """[tokens, d] from a tensor [..., d], or from a list with one tensor per picture."""
    return part.flatten(0, -2) if isinstance(part, Tensor) else torch.cat(list(part))


def by_picture(encoded: Any) -> Any:
    """Split deepstack features into one entry per picture, as in transformers 5.18; older versions have one [tokens, d]."""
    levels = getattr(encoded, "deepstack_features", None)
    if levels is not None and isinstance(levels[0], Tensor):
        lengths = [len(picture) for picture in encoded.pooler_output]
        encoded.deepstack_features = [level.split(lengths) for level in levels]
    return encoded


def by_row(encoded: Any, counts: Sequence[int]) -> list[Any]:
    """The encoded pictures of each row, given its number of placeholders; a row may have several entries, such as tiles."""
    lengths, rows, start = [len(entry) for entry in encoded.pooler_output], list[Any](), 0
    for count in counts:
        end = start
        while end < len(lengths) and sum(lengths[start:end]) < count:
            end += 1
        if sum(lengths[start:end]) != count:
            raise ModelError(
                f"{sum(lengths)} encoded tokens for rows of {', '.join(map(str, counts))}: they cannot be told apart"
            )
        row = copy(encoded)
        row.pooler_output = encoded.pooler_output[start:end]
        if getattr(encoded, "deepstack_features", None) is not None:
            row.deepstack_features = [level[start:end] for level in encoded.deepstack_features]
        rows.append(row)
        start = end
    return rows


def join_pictures(parts: list[Any], times: int = 1) -> Any:
    """Concatenate encoded pictures, each repeated `times` times; None for no parts."""
    if not parts:
        return None

    def repeated(lists: list[Any]) -> Any:
        if isinstance(lists[0], Tensor):  # [pictures, tokens, d]
            return torch.cat(lists).repeat_interleave(times, 0)
        return [picture for pictures in lists for picture in pictures for _ in range(times)]

    joined = copy(parts[0])
    joined.pooler_output = repeated([part.pooler_output for part in parts])
    if getattr(joined, "deepstack_features", None) is not None:
        levels = zip(*(part.deepstack_features for part in parts), strict=True)
        joined.deepstack_features = [repeated(list(level)) for level in levels]
    return joined
