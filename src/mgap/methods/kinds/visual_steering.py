"""Steering by what a row's own picture changes: one vector per row and block, made in the first forward of a generation.

    v_i = x_i(prompt) - x_i(prompt without the picture)    output of block i at the last prompt position, not steered

Two prefills inside the caller's first forward make the vectors of all its rows; one of them reads the text only. The picture is
encoded once. Then every forward of that generation is steered, the prompt's too, without waiting for the GPU at any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import Cache

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call, ImageEmbedder
from mgap.backbones.token_rows import TOKEN_KEYS
from mgap.errors import ModelError, PromptError
from mgap.methods.kinds.generation_start import starts_generation
from mgap.methods.kinds.main_rows import row_split_of
from mgap.priors.steering import catch_blocks

SITES = ("mlp", "block")  # whose output is steered
Steer = Callable[[Tensor, Tensor], Tensor]  # states [B, T, d] and vectors [B, 1, d] of length 1 -> steered states, float32


def visual_vectors(shown: Tensor, unshown: Tensor) -> Tensor:
    """v above, [..., d], in float32 or wider."""
    wide = torch.promote_types(shown.dtype, torch.float32)
    return shown.to(wide) - unshown.to(wide)


class VisualSteering:
    """The steering of one model's generations in the blocks `blocks`, counted from 1."""

    def __init__(self, backbone: Backbone, name: str, blocks: Sequence[int], site: str, steer: Steer) -> None:
        self.backbone, self.name, self.blocks, self.steer = backbone, name, blocks, steer
        self.sites = [find_site(name, backbone.layers[number - 1], site) for number in blocks]
        self.row_split, self.embedder = row_split_of(backbone.model), ImageEmbedder(backbone)
        self.vectors: WeakKeyDictionary[Cache, list[Tensor]] = WeakKeyDictionary()  # [B, 1, d] of length 1 for each block
        self.current: list[Tensor] = []  # those of the forward that is running; none: it is not steered

    def hook(self) -> list[RemovableHandle]:
        """Register the hooks; the caller removes them."""
        model = self.backbone.model
        return [
            *self.embedder.attach(),
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),  # also if the forward raises
            *(site.register_forward_hook(partial(self._apply, number)) for number, site in enumerate(self.sites)),
        ]

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        """Before a forward of the caller: find its vectors; make them if it reads a prompt."""
        if self.row_split.is_paused:
            return args, kwargs
        if starts_generation(self.name, args, kwargs, self.vectors):
            kwargs = self.embedder.encode_pixels(self.name, kwargs)
            self.vectors[kwargs["past_key_values"]] = self._make_vectors(model, kwargs)
        self.current = self.vectors[kwargs["past_key_values"]]
        return args, kwargs

    def _end(self, *_: Any) -> None:
        if not self.row_split.is_paused:
            self.current = []

    def _apply(self, number: int, _site: nn.Module, _args: Any, output: Any) -> Any:
        """Steer the output of the number-th site."""
        if not self.current:
            return output
        states: Tensor = output[0] if isinstance(output, tuple) else output  # [B, T, d]
        unit = self.current[number].to(states.device)
        steered = self.steer(states.to(unit.dtype), unit).to(states.dtype)
        return (steered, *output[1:]) if isinstance(output, tuple) else steered

    def _make_vectors(self, model: nn.Module, kwargs: Call) -> list[Tensor]:
        """Run the prompts of a first forward with and without their pictures."""
        if not self.backbone.image_mask(kwargs).any(-1).all():
            raise PromptError(f"{self.name} steers to what a picture changes: give one in every row, or leave {self.name} off")
        rows = {key: kwargs[key] for key in TOKEN_KEYS if kwargs.get(key) is not None}
        rows.setdefault("attention_mask", torch.ones_like(rows["input_ids"]))
        text = self.backbone.without_image(rows)
        bare = {**text, "position_ids": self.backbone.positions(text), **self.embedder.arguments(text["input_ids"], None)}
        shown, unshown = (self._last_outputs(model, call) for call in (kwargs, bare))
        return [F.normalize(visual_vectors(*pair), dim=-1).unsqueeze(1) for pair in zip(shown, unshown, strict=True)]

    def _last_outputs(self, model: nn.Module, call: Call) -> list[Tensor]:
        """The outputs of the blocks at the last position, [B, d] each."""
        with self.row_split.paused(), torch.no_grad(), catch_blocks(self.backbone, last=True) as caught:
            model(**{**call, "past_key_values": None, "use_cache": False, "logits_to_keep": 1})
        return [caught[number - 1] for number in self.blocks]


def find_site(name: str, block: nn.Module, site: str) -> nn.Module:
    """The module whose output is steered, for the method `name`."""
    if site == "block":
        return block
    mlp = getattr(block, "mlp", None)
    if not isinstance(mlp, nn.Module):
        raise ModelError(f"{type(block).__name__} has no part called mlp, where {name} steers: give site=block")
    return mlp
