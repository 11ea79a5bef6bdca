"""The logit lens: early layers read out through the head, only at the positions that the head reads.

hs[0] is the first block's input, hs[i] the input of block i + 1, hs[L] the head's input. A pre-hook on the model learns which
positions will reach the head, so that a prefill keeps one vector per layer and row instead of the whole prompt.
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
    """Logits [..., vocab] in `head.wide` of states [..., d]."""
    return head.post(head.product(as_head_input(head, states, norm)))


def as_head_input(head: Head, states: Tensor, norm: nn.Module | None) -> Tensor:
    """States [..., d] as the head reads them: in its dtype, after the final norm if one is given."""
    states = states.to(head.device, head.dtype)
    return states if norm is None else norm.forward(states)


def check_layers(layers: Sequence[int], count: int) -> tuple[int, ...]:
    """Sorted indices of hs below L; refuses an empty choice and the head's own input."""
    chosen = sorted(set(layers))
    wrong = [layer for layer in chosen if not 0 <= layer < count]
    if wrong or not chosen:
        what = f"layer {wrong[0]} is not among them" if wrong else "none is chosen"
        raise SettingError(f"the model has {count} blocks, so early layers are 0 to {count - 1}: {what}; set layers=[...]")
    return tuple(chosen)


@dataclass
class Frame:
    """One forward that is running."""

    positions: Any  # that the head will read: a slice, or indices
    states: dict[int, Tensor] = field(default_factory=dict)  # layer -> [B, T, d]
    is_open_ended: bool = False  # blocks were called directly, so no hook marks the end of this forward


class Lens:
    """The states of some layers in the current forward; nothing outlives that forward.

    Forwards may nest, and run in several threads (a stream has its own); torch.compile runs one at a time.
    """

    def __init__(self, backbone: Backbone, layers: Sequence[int]) -> None:
        self.backbone, self.layers = backbone, check_layers(layers, len(backbone.layers))
        self._frames: dict[int, list[Frame]] = {}  # thread -> forwards, the innermost last

    def hook(self) -> list[RemovableHandle]:
        """Register the hooks that keep the states; the caller removes them."""
        model, blocks = self.backbone.model, self.backbone.layers
        return [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),  # also if the forward raises
            *(blocks[i].register_forward_pre_hook(partial(self._keep, i), with_kwargs=True) for i in self.layers),
        ]

    def take(self, h: Tensor) -> Tensor:
        """Take the states [layers, B, T, d] that belong to the head's input h [B, T, d]; works once per forward."""
        frames = self._frames.get(_thread())
        states: dict[int, Tensor] = {}
        if frames:
            states, frames[-1].states = frames[-1].states, states
            if frames[-1].is_open_ended:
                self._end()
        shapes = {states[layer].shape if layer in states else None for layer in self.layers}
        if shapes != {h.shape}:
            raise ModelError(
                f"{self.backbone.name}: the head reads {tuple(h.shape)}, and its blocks read {sorted(map(str, shapes))}: "
                "call the model itself, not its parts, so that earlier layers can be read out"
            )
        return torch.stack([states[layer].to(h.device) for layer in self.layers])

    def _begin(self, _model: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep = kwargs.get("logits_to_keep", 0)
        positions = slice(-keep, None) if isinstance(keep, int) else keep  # 0: all of them
        self._frames.setdefault(_thread(), []).append(Frame(positions))

    def _end(self, *_: Any) -> None:
        frames = self._frames.get(_thread(), [])
        if frames:
            frames.pop()
        if not frames:
            self._frames.pop(_thread(), None)

    def _keep(self, layer: int, _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frames = self._frames.setdefault(_thread(), [])
        if not frames:
            frames.append(Frame(slice(None), is_open_ended=True))
        state: Tensor = args[0] if args else kwargs["hidden_states"]
        part = state[:, frames[-1].positions]
        is_all = part.shape[1] == state.shape[1]
        frames[-1].states[layer] = part if is_all else part.clone()  # a view would keep the whole tensor alive


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()  # the compiler cannot trace get_ident
