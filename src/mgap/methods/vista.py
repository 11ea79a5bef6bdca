"""VISTA (Li et al., ICML 2025): steer every block towards what the picture changed, and mix in what late blocks predict.

    v_i = x_i(prompt) - x_i(prompt without the picture)    output of block i = 1..L at the last prompt position, not steered
    m  <- ||m|| unit(m / ||m|| + lam g v_i / ||v_i||)      m the MLP output of block i, at every position of prompt and answer
    s   = (1 - alpha) l + alpha mean_{i in window} W x_i   x_i without the final norm;   g = 1 + max(0, cos(m, -v_i))

Each row has its own vectors (kinds/visual_steering.py). Cost: 1 forward per token, eleven small kernels per steered block,
and one more head product, since the head is linear and reads the mean; two prefills per prompt, one without the picture. At lam
0 there are no vectors and no prefills. Where paper and code differ, or may:

- The vector is measured on the residual stream, and the code adds it to the MLP's output; `site="block"` steers the stream.
- g is the code's; whether the paper has it is not known to us. `gain=False` is g = 1.
- The code fits a PCA to the single difference, which adds 1 to coordinate 0 of the first vector by accident. Not reproduced.
- Early states reach the head without the final norm, so their logits are on another scale than l; `normed=True` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.backbones.logit_lens import Lens, as_head_input
from mgap.errors import SettingError
from mgap.methods.base import Handles, Removable, Tap
from mgap.methods.head_inputs import HeadInputs, Weight, mix_states
from mgap.methods.kinds.attention import report_logits
from mgap.methods.kinds.branch import distance
from mgap.methods.kinds.layers import Combined, LayerReadout, LayersMethod, block_numbers, layer_indices
from mgap.methods.kinds.visual_steering import SITES, VisualSteering
from mgap.settings import check_choice, check_strength, check_switch
from mgap.types import ALL_MODES, Mode

PRESETS: dict[str, dict[str, Any]] = {"captions": {"lam": 0.17}, "questions": {"lam": 0.01}}


def gained(m: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """g ||m|| [..., T, 1]: up to twice the length of m [..., T, d] where m looks away from the vector [..., 1, d]."""
    return length - (m @ unit.mT).clamp_max(0)


def turn(m: Tensor, unit: Tensor, *, lam: float, gain: bool) -> Tensor:
    """m [..., T, d] turned towards a vector [..., 1, d] of length 1; its own length stays.

    A vector of zeros leaves m as it is, and so does lam 0; nothing is divided by zero.
    """
    length: Tensor = torch.linalg.vector_norm(m, dim=-1, keepdim=True)  # [..., T, 1]
    moved = torch.addcmul(m, gained(m, unit, length) if gain else length, unit, value=lam)
    divisor: Tensor = torch.linalg.vector_norm(moved, dim=-1, keepdim=True).clamp_min(torch.finfo(m.dtype).tiny)
    return moved * (length / divisor)


class MeanReadout(LayerReadout):
    """Reads out the mean of the layers where the head is linear: one product for all of them."""

    def _early(self, states: Tensor) -> Tensor:
        if not self.head.linear:
            return super()._early(states)
        mean = as_head_input(self.head, states, self.norm).to(self.head.wide).mean(0, keepdim=True)
        return self.head.post(self.head.product(mean))  # [1, B, T, vocab]


@dataclass(frozen=True)
class VISTA(LayersMethod):
    """Visual information steering with token-logit augmentation. Settings that are not given come from the preset.

    `layers` are the steered blocks, counted from 1; None: all. `window` are the layers that are read out, as indices of hs;
    None: 26 to 31 of 32 blocks, or the same fractions.
    """

    name: ClassVar[str] = "vista"
    summary: ClassVar[str] = "steer the blocks towards what the picture changes, and mix in late layers"
    besides: ClassVar[str] = "two prefills a prompt, one without the picture"
    modes: ClassVar[frozenset[Mode]] = ALL_MODES - {Mode.ASSISTED, Mode.STATIC, Mode.COMPILE}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(PRESETS)
    shares_prefill: ClassVar[bool] = False  # prompts are steered
    moved_by: ClassVar[str] = "alpha"  # at lam 0 only
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"lam": 0.0, "alpha": 0.0})

    lam: float | None = None
    alpha: float = 0.3
    window: int | Sequence[int] | None = None
    layers: int | Sequence[int] | None = None
    site: str = "mlp"
    gain: bool = True
    normed: bool = False
    preset: str = "captions"

    def __post_init__(self) -> None:
        self.fill_from_preset()
        for name in ("lam", "alpha"):
            check_strength(name, getattr(self, name))
        check_choice("site", self.site, SITES)
        for name in ("gain", "normed"):
            check_switch(name, getattr(self, name))
        for name in ("window", "layers"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(sorted(set(layer_indices(getattr(self, name), name=name)))))

    @property
    def needs_picture(self) -> bool:  # type: ignore[override]  # here it depends on a setting
        """At lam 0 nothing is steered, and late layers are mixed in whatever the prompt shows."""
        return self.strength != 0

    @property
    def strength(self) -> float:
        """lam, filled in from the preset."""
        return float(self.lam or 0)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        steering = self._steering(backbone) if self.strength else None  # raises before anything is hooked
        reading = super().attach(backbone, tap) if self.alpha else report_logits(backbone, tap)
        return Handles(reading, *(steering.hook() if steering else ()))

    def _steering(self, backbone: Backbone) -> VisualSteering:
        blocks = block_numbers(self.layers, len(backbone.layers))
        return VisualSteering(backbone, self.name, blocks, self.site, partial(turn, lam=self.strength, gain=self.gain))

    @property
    def is_normed(self) -> bool:
        return self.normed

    def early_layers(self, count: int, head: Head) -> tuple[int, ...]:  # noqa: ARG002  the head does not matter here
        if self.window is None:
            start = min(25 * count // 32, count - 2)
            stop = max(min(31 * count // 32, count - 1), start + 1)
            return tuple(range(start + 1, stop + 1))
        chosen = layer_indices(self.window)
        if not all(layer < count for layer in chosen):
            raise SettingError(f"window={list(chosen)} must lie between 0 and {count - 1}, before the last of {count} blocks")
        return chosen

    def readout(self, lens: Lens, norm: nn.Module | None, head: Head, tap: Tap) -> LayerReadout:
        return MeanReadout(lens, norm, head, self.combine, tap)

    def combine(self, final: Tensor, early: Tensor) -> Combined:
        mean = early.mean(0)
        return Combined(torch.lerp(final, mean, self.alpha), None, lambda: {"distance": distance(final, mean)})

    def require_state(self) -> None:
        if self.strength:
            raise SettingError(
                f"vista at lam={self.strength:g} moves the states of many blocks, and no one number moves the head's input: "
                "give lam=0, or leave vista out"
            )

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        """(1 - strength) h + strength times the mean of the layers that are read out."""
        self.require_state()
        mean = torch.stack(list(inputs.early.values())).mean(0)
        return mix_states(self.name, head, (1 - strength, strength), (inputs.h, mean))
