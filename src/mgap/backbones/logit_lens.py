"""Earlier layers read out through the head (the logit lens), at the positions that the head reads and nowhere else.

hs[0] is what the first block reads, hs[i] what block i + 1 reads, hs[L] the head's input. A hook before the model learns which
positions will reach the head, so that a prefill keeps one vector a layer and row instead of the whole prompt.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import ModelError, SettingError


def read_out(states: Tensor, head: Head, norm: nn.Module | None) -> Tensor:
    """Logits [..., vocab] in `head.wide` of states [..., d], as the model would make them of its last ones."""
    return head.post(head.product(put_to(head, states, norm)).to(head.wide))


def put_to(head: Head, states: Tensor, norm: nn.Module | None) -> Tensor:
    """States [..., d] as the head reads them: in its type, and past the final norm where there is one to pass."""
    states = states.to(head.device, head.dtype)
    return states if norm is None else norm.forward(states)


def check_layers(layers: Sequence[int], count: int) -> tuple[int, ...]:
    """Indices of hs below L, ascending; refuses none at all and the head's own input."""
    chosen = sorted(set(layers))
    wrong = [layer for layer in chosen if not 0 <= layer < count]
    if wrong or not chosen:
        what = f"layer {wrong[0]} is not among them" if wrong else "none is chosen"
        raise SettingError(f"the model has {count} blocks, so early layers are 0 to {count - 1}: {what}; set layers=[...]")
    return tuple(chosen)


@dataclass
class Frame:
    """One forward that is running."""

    places: Any  # which positions the head will read: a slice, or indices
    kept: dict[int, Tensor] = field(default_factory=dict)  # layer -> [B, T, d]
    is_loose: bool = False  # the model's parts were called by hand: nothing tells where this forward ends


class Lens:
    """The states of some layers in the forward that is running; nothing outlives that forward.

    Forwards may nest, and run in several threads (a stream has its own); torch.compile runs one at a time.
    """

    def __init__(self, backbone: Backbone, layers: Sequence[int]) -> None:
        self.backbone, self.layers = backbone, check_layers(layers, len(backbone.layers))
        self._frames: dict[int, list[Frame]] = {}  # thread -> forwards, the innermost last

    def hook(self) -> list[RemovableHandle]:
        """Hooks that keep the states; the caller removes them."""
        model, blocks = self.backbone.model, self.backbone.layers
        return [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),  # also when the forward breaks off
            *(blocks[i].register_forward_pre_hook(partial(self._keep, i), with_kwargs=True) for i in self.layers),
        ]

    def take(self, h: Tensor) -> Tensor:
        """The states [layers, B, T, d] that belong to the head's input h [B, T, d]; they are given out once."""
        frames = self._frames.get(_thread())
        kept: dict[int, Tensor] = {}
        if frames:
            kept, frames[-1].kept = frames[-1].kept, kept
            if frames[-1].is_loose:
                self._end()
        shapes = {kept[layer].shape if layer in kept else None for layer in self.layers}
        if shapes != {h.shape}:
            raise ModelError(
                f"{self.backbone.name}: the head reads {tuple(h.shape)}, and its blocks read {sorted(map(str, shapes))}: "
                "call the model itself, not its parts, so that earlier layers can be read out"
            )
        return torch.stack([kept[layer].to(h.device) for layer in self.layers])

    def _begin(self, _model: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep = kwargs.get("logits_to_keep", 0)
        places = slice(-keep, None) if isinstance(keep, int) else keep  # 0: all of them
        self._frames.setdefault(_thread(), []).append(Frame(places))

    def _end(self, *_: Any) -> None:
        frames = self._frames.get(_thread(), [])
        if frames:
            frames.pop()
        if not frames:
            self._frames.pop(_thread(), None)

    def _keep(self, layer: int, _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frames = self._frames.setdefault(_thread(), [])
        if not frames:
            frames.append(Frame(slice(None), is_loose=True))
        state: Tensor = args[0] if args else kwargs["hidden_states"]
        part = state[:, frames[-1].places]
        whole = part.shape[1] == state.shape[1]
        frames[-1].kept[layer] = part if whole else part.clone()  # a view would hold all of it


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()  # the compiler cannot follow get_ident
