"""Methods that read out early layers through the head and combine them with the final prediction.

A method defines which layers it reads and how their logits combine with the final ones. Cost: one forward per token, and one
head product per layer at the positions that the head reads. Positions and rows are independent, so all decoding modes work:
beams, batches, drafts that are checked several at a time, static caches and compiled steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.backbones.logit_lens import Lens, read_out
from mgap.errors import SettingError
from mgap.methods.base import Handles, Method, Observation, Removable, Seam, Tap
from mgap.methods.kinds.main_rows import row_split_of
from mgap.types import ALL_MODES, Mode

_CHUNK = 8  # positions at a time: a forward over a whole prompt would need layers x prompt x vocabulary numbers


class Combined(NamedTuple):
    """The result of one step."""

    scores: Tensor  # [..., vocab], -inf where a token is ruled out
    chosen: Tensor | None  # [...] index of the early layer that was chosen; None: none is, all count
    trace: Callable[[], dict[str, Tensor]]  # numbers for the trace, each [...]; computed only if traced

    @property
    def values(self) -> dict[str, Tensor]:
        return self.trace()


Combine = Callable[[Tensor, Tensor], Combined]  # final logits [..., vocab], early ones [layers, ..., vocab]


class LayerReadout:
    """A combination bound to one head. Called as that head's forward hook."""

    def __init__(self, lens: Lens, norm: nn.Module | None, head: Head, combine: Combine, tap: Tap) -> None:
        self.lens, self.norm, self.head, self.combine, self.tap = lens, norm, head, combine, tap
        self.numbers = torch.tensor(lens.layers, device=head.device)  # [layers]
        self.row_split = row_split_of(lens.backbone.model)

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if self.row_split.is_paused:
            return output
        states = self.lens.take(args[0])  # [layers, B, T, d]
        final = self.head.post(output.to(self.head.wide))  # [B, T, vocab]
        parts = [
            self.combine(final[:, start : start + _CHUNK], self._early(states[:, :, start : start + _CHUNK]))
            for start in range(0, final.shape[1], _CHUNK)
        ]
        scores = parts[0].scores if len(parts) == 1 else torch.cat([part.scores for part in parts], dim=1)
        if self.tap.listener is not None:
            traced = [self._trace(part) for part in parts]
            values = {name: torch.cat([part[name] for part in traced], dim=1).to(final.dtype) for name in traced[0]}
            self.tap.listener(Observation(values, final, scores))
        return self.head.unpost(scores)

    def _trace(self, part: Combined) -> dict[str, Tensor]:
        return part.values if part.chosen is None else {"layer": self.numbers[part.chosen], **part.values}

    def _early(self, states: Tensor) -> Tensor:
        return read_out(states, self.head, self.norm)  # [layers, B, T, vocab]


@dataclass(frozen=True)
class LayersMethod(Method):
    """Cost: 1 forward per token and a head product per layer. All decoding modes. Refuses heads with a soft cap."""

    seam: ClassVar[Seam] = Seam.LAYERS
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES
    shares_prefill: ClassVar[bool] = True

    @abstractmethod
    def early_layers(self, count: int, head: Head) -> tuple[int, ...]:
        """The layers to read in a model with `count` blocks, as indices of hs: 0 is the embeddings, i the output of block i."""

    @property
    @abstractmethod
    def is_normed(self) -> bool:
        """Whether early states pass through the model's final norm before the head."""

    @abstractmethod
    def combine(self, final: Tensor, early: Tensor) -> Combined:
        """Scores from final logits [..., vocab] and early ones [layers, ..., vocab]."""

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        head = backbone.probe_head()
        head.unpost(torch.zeros(()))  # refuses a soft cap now rather than at the first token
        lens, norm = self.lens(backbone, head)
        readout = self.readout(lens, norm, head, tap)
        return Handles(*lens.hook(), head.module.register_forward_hook(readout))

    def readout(self, lens: Lens, norm: nn.Module | None, head: Head, tap: Tap) -> LayerReadout:
        """The head's hook; a method with a faster way to the same logits overrides it."""
        return LayerReadout(lens, norm, head, self.combine, tap)

    def lens(self, backbone: Backbone, head: Head) -> tuple[Lens, nn.Module | None]:
        """The lens for the layers it reads, and the norm that they pass through, if any."""
        return Lens(backbone, self.early_layers(len(backbone.layers), head)), backbone.final_norm if self.is_normed else None


def layer_indices(given: Any, others: str = "", *, name: str = "layers") -> tuple[int, ...]:
    """A number, or a list of numbers, as layers of hs; `others` says what else the setting `name` may be."""
    numbers = given if isinstance(given, list | tuple | range) else [given]
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        raise SettingError(
            f"{name}={given!r} must be {others}numbers such as [2, 4, 6]: 0 the embeddings, i the output of block i"
        )
    return tuple(numbers)


def block_numbers(given: Sequence[int] | int | None, count: int) -> tuple[int, ...]:
    """The blocks that a setting `layers` names, counted from 1, of a model with `count` blocks; None: all of them."""
    numbers = tuple(range(1, count + 1)) if given is None else layer_indices(given)
    if not all(1 <= number <= count for number in numbers):
        raise SettingError(f"layers={list(numbers)} must lie between 1 and {count}, the blocks of this model")
    return numbers
