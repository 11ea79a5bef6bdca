"""How encoded pictures get into a forward: as an argument of it, or at the text decoder, by a hook.

From transformers 5.18 on, `generate` encodes pictures before the first forward, which takes the result (`mm_encoder_outputs`).
Older versions give it pixels. There the pictures are encoded here, once, and travel beside the forward's arguments to a hook at
the text decoder, which puts them in the placeholders' places as the model itself would have. Whoever adds rows to a forward, or
shows a picture again, then works with encoded pictures in every version, and nothing else needs to know which one it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
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
ENCODED = "mm_encoder_outputs"  # as transformers names the argument
_ARGUMENT = "mgap_pictures"  # carries pictures from a forward's arguments to the text decoder


@dataclass(frozen=True, eq=False)
class Carried:
    """Pictures on their way to the text decoder."""

    features: Any  # as the model's get_image_features gives them
    places: Tensor  # bool [B, T]: the placeholders


class ImageEmbedder:
    """Encoded pictures for the forwards of one model. `attach` before them, where they go in by the hook."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        unwrap = getattr(backbone.model, "get_base_model", None)  # an adapter's forward names no arguments
        model = backbone.model if unwrap is None else unwrap()
        self.is_argument = ENCODED in inspect.signature(model.forward).parameters

    def attach(self) -> list[RemovableHandle]:
        return [] if self.is_argument else [self.backbone.language.register_forward_pre_hook(embed_pictures, with_kwargs=True)]

    def admit(self, name: str, kwargs: Call) -> Call:
        """A first forward's arguments with its pictures encoded, for the method `name`; an error where they cannot be."""
        if kwargs.get("pixel_values") is None:
            return kwargs
        if self.is_argument:
            raise UnsupportedDecoding(f"{name} was given pixels in a forward: call generate, which encodes them before")
        self._check_family(name)
        encode = self.backbone.model.base_model.get_image_features
        names = {*inspect.signature(encode).parameters, "image_sizes"} - {"output_hidden_states", "return_dict"}
        known = {key: value for key, value in kwargs.items() if key in names and value is not None}
        features = by_picture(encode(**known, return_dict=True))
        return {**kwargs, "pixel_values": None, **self.arguments(kwargs["input_ids"], features)}

    def features(self, kwargs: Call) -> Any:
        """The pictures of a forward, as the language model reads them; None where there are none."""
        if self.is_argument:
            return (kwargs.get(ENCODED) or {}).get("image")
        carried: Carried | None = kwargs.get(_ARGUMENT)
        return None if carried is None else carried.features

    def arguments(self, ids: Tensor, features: Any) -> Call:
        """What a forward of rows `ids` [B, T] takes so that it shows these pictures, in the order of the rows."""
        if self.is_argument:
            return {ENCODED: {} if features is None else {"image": features}}
        return {_ARGUMENT: None if features is None else Carried(features, self.backbone.image_mask({"input_ids": ids}))}

    @contextmanager
    def generating(self, inputs: Call, features: Any) -> Iterator[Call]:
        """What a generate takes inside the block so that its prompts show these pictures."""
        if self.is_argument:
            yield {**inputs, ENCODED: {"image": features}}
            return
        self._check_family("showing a picture again")
        waiting = [features]

        def first(_model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
            return args, {**kwargs, **self.arguments(kwargs["input_ids"], waiting.pop())} if waiting else kwargs

        handles = [self.backbone.model.register_forward_pre_hook(first, with_kwargs=True), *self.attach()]
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
    """Before the text decoder: pictures go in the placeholders' places, at every depth where it reads them."""
    inner = {key: value for key, value in kwargs.items() if key != _ARGUMENT}
    carried: Carried | None = kwargs.get(_ARGUMENT)
    if carried is None:
        return args, inner
    embeds: Tensor = inner["inputs_embeds"]  # [B, T, d]
    places, pictures = carried.places.to(embeds.device), flatten(carried.features.pooler_output).to(embeds)
    if len(pictures) != int(places.sum()):
        kind = type(language).__name__
        raise ModelError(f"{len(pictures)} encoded tokens for {int(places.sum())} placeholders: {kind} cannot read them")
    inner["inputs_embeds"] = embeds.masked_scatter(places.unsqueeze(-1), pictures)
    levels = getattr(carried.features, "deepstack_features", None)
    if levels is not None:
        inner.update(visual_pos_masks=places, deepstack_visual_embeds=[flatten(level) for level in levels])
    return args, inner


def flatten(part: Any) -> Tensor:
    """A tensor [..., d], or a list of them, one a picture: [tokens, d]."""
    return part.flatten(0, -2) if isinstance(part, Tensor) else torch.cat(list(part))


def by_picture(encoded: Any) -> Any:
    """What deeper blocks read of the pictures one entry a picture, as in transformers 5.18; a tensor [tokens, d] before."""
    levels = getattr(encoded, "deepstack_features", None)
    if levels is not None and isinstance(levels[0], Tensor):
        lengths = [len(picture) for picture in encoded.pooler_output]
        encoded.deepstack_features = [level.split(lengths) for level in levels]
    return encoded


def join_pictures(parts: list[Any], times: int = 1) -> Any:
    """Encoded pictures one after the other, each `times` times; None for no parts."""
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
