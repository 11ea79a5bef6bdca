"""Methods that read earlier layers out through the head and combine them with the final prediction.

A method says which layers it reads and how their logits combine with the final ones. One forward a token; the chosen layers
cost one head product each, at the positions that the head reads. Positions and rows are independent, so every decoding
mode works: beams, batches, drafts that are checked several at a time, static caches and compiled steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.backbones.logit_lens import Lens, read_out
from mgap.errors import SettingError
from mgap.methods.base import Handles, Method, Observation, Removable, Seam, Tap
from mgap.types import ALL_MODES, Mode

_AT_ONCE = 8  # positions: a forward over a whole prompt would make layers x prompt x vocabulary numbers otherwise


class Combined(NamedTuple):
    """What a method makes of one step."""

    scores: Tensor  # [..., vocab], -inf where a token is ruled out
    chosen: Tensor  # [...] which of the early layers was chosen
    trace: Callable[[], dict[str, Tensor]]  # each [...], worth tracing; computed only when asked for

    @property
    def values(self) -> dict[str, Tensor]:
        return self.trace()


Combine = Callable[[Tensor, Tensor], Combined]  # final logits [..., vocab], early ones [layers, ..., vocab]


class LayerReadout:
    """A combination bound to one head. Called as that head's forward hook."""

    def __init__(self, lens: Lens, norm: nn.Module | None, head: Head, combine: Combine, tap: Tap) -> None:
        self.lens, self.norm, self.head, self.combine, self.tap = lens, norm, head, combine, tap
        self.numbers = torch.tensor(lens.layers, device=head.device)  # [layers]

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        states = self.lens.take(args[0])  # [layers, B, T, d]
        final = self.head.post(output.to(self.head.wide))  # [B, T, vocab]
        parts = [
            self.combine(final[:, start : start + _AT_ONCE], self._early(states[:, :, start : start + _AT_ONCE]))
            for start in range(0, final.shape[1], _AT_ONCE)
        ]
        scores = parts[0].scores if len(parts) == 1 else torch.cat([part.scores for part in parts], dim=1)
        if self.tap.listener is not None:
            traced = [{"layer": self.numbers[part.chosen], **part.values} for part in parts]
            values = {name: torch.cat([each[name] for each in traced], dim=1).to(final.dtype) for name in traced[0]}
            self.tap.listener(Observation(values, final, scores))
        return self.head.unpost(scores).to(output.dtype)

    def _early(self, states: Tensor) -> Tensor:
        return read_out(states, self.head, self.norm)  # [layers, B, T, vocab]


@dataclass(frozen=True)
class LayersMethod(Method):
    """Cost: 1 forward a token and a head product a layer. Every decoding mode. Refuses heads with a soft cap."""

    seam: ClassVar[Seam] = Seam.LAYERS
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES
    shares_prefill: ClassVar[bool] = True

    @abstractmethod
    def early_layers(self, count: int, head: Head) -> tuple[int, ...]:
        """Which layers of a model with this many blocks, as indices of hs: 0 is the embeddings, i the output of block i."""

    @property
    @abstractmethod
    def is_normed(self) -> bool:
        """Whether an early state passes the model's final norm on its way to the head."""

    @abstractmethod
    def combine(self, final: Tensor, early: Tensor) -> Combined:
        """Scores from final logits [..., vocab] and early ones [layers, ..., vocab]."""

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        head = backbone.probe_head()
        head.unpost(torch.zeros(()))  # refuses a soft cap now rather than at the first token
        lens, norm = self.lens(backbone, head)
        readout = LayerReadout(lens, norm, head, self.combine, tap)
        return Handles(*lens.hook(), head.module.register_forward_hook(readout))

    def lens(self, backbone: Backbone, head: Head) -> tuple[Lens, nn.Module | None]:
        """What keeps the layers it reads, and the norm that they pass, if they do."""
        return Lens(backbone, self.early_layers(len(backbone.layers), head)), backbone.final_norm if self.is_normed else None


def layer_indices(given: Any, others: str = "") -> tuple[int, ...]:
    """A number, or a list of them, as layers of hs; `others` says what else the setting may be."""
    numbers = given if isinstance(given, list | tuple | range) else [given]
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        raise SettingError(
            f"layers={given!r} must be {others}numbers such as [2, 4, 6]: 0 the embeddings, i the output of block i"
        )
    return tuple(numbers)
