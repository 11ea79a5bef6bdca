"""Methods that use the blind state: what the head reads for the same prompt and answer so far without the picture.

    h        head input with the picture            h_blind   head input without it
    acts     where the plain prediction's entropy is above `unsure`; at every token if that is 0

`branch_mode` says how to get h_blind: as rows of the same forward ("batched"), from a separate forward at every token
("sequential"), or only where it is needed ("cached", blind_states.py). Cached, a token at which the method does not act costs
nothing, nor does a prompt and answer so far that was read before. A method computes one state from the two (`Move`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.methods.base import Removable, Tap
from mgap.methods.blind import NULLS, null_image_builder
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.blind_states import BLIND, OPEN, POSITION, STATE, BlindStates, BlindStatesOnDemand
from mgap.methods.kinds.branch import Build, PairedMethod
from mgap.methods.kinds.paired_forward import Inputs, RowState, Weigh
from mgap.methods.mgap import entropy_of
from mgap.settings import check_choice, check_count, check_strength


class Move(Protocol):
    """A method bound to one head: moves a plain state, given the blind one."""

    head: Head

    def states(self, h: Tensor, blind: Tensor, entropy: Tensor, strength: Weight, *, is_first: bool) -> Tensor:
        """Moved states [B, d] at a strength, from states [B, d] in `head.wide` and entropies [B] of the plain predictions.

        `is_first`: these are the first tokens of answers.
        """

    def logits(self, h: Tensor, blind: Tensor, entropy: Tensor, *, is_first: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """The change of the plain logits [B, vocab] at the method's own strength, and numbers [B] for the trace."""


@dataclass(frozen=True)
class BlindMethod(PairedMethod):
    """Moves the state, given the blind one. Cost: 2 forwards per token; cached: 1, and 1 more where it acts."""

    branch_modes: ClassVar[tuple[str, ...]] = (*PairedMethod.branch_modes, "cached")
    besides: ClassVar[str] = "1 forward a token, and 1 where it acts, with branch_mode=cached"
    moved_by: ClassVar[str] = "rho"
    touches_all: ClassVar[bool] = False  # also moves states without a blind one, using the plain state in its place

    rho: float = 1.0
    unsure: float = 0.0  # nats; plain predictions with less entropy are left alone
    null_image: str = "black_same_size"
    memory: int = 4096  # blind states that "cached" keeps while the method is attached

    def check_settings(self) -> None:
        super().check_settings()
        for name in ("rho", "unsure"):
            check_strength(name, getattr(self, name))
        check_choice("null_image", self.null_image, NULLS)
        check_count("memory", self.memory, least=0)

    @abstractmethod
    def bind(self, head: Head) -> Move:
        """On attaching: bind the method to this head."""

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:  # noqa: ARG002
        return null_image_builder(self.name, backbone, self.null_image)

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        return self.prepare(backbone, Tap())(main)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return (BlindStatesOnDemand if self.branch_mode == "cached" else BlindStates)(backbone, self, tap)

    def weigher(self, backbone: Backbone) -> Weigh:
        move = self.bind(backbone.probe_head())

        def weigh(main: Tensor, _branches: Sequence[Tensor], step: int, rows: RowState) -> tuple[Tensor, dict[str, Tensor]]:
            h, blind = (rows[key].to(move.head.device, move.head.wide) for key in (STATE, BLIND))  # [B, d]
            is_open = rows[OPEN].to(main.device)
            change, values = move.logits(h, self._blind_or_own(h, blind, is_open), entropy_of(main), is_first=step == 1)
            scores = torch.where(self._touched(is_open), main + change.to(main.device), main)
            position = torch.full_like(main[:, 0], step)
            return scores, {OPEN: is_open.to(main.dtype), POSITION: position, **values}

        return weigh

    def is_open(self, main: Tensor) -> Tensor:
        """Which rows it acts on, bool [B], given the plain logits [B, vocab]."""
        if self.unsure == 0:
            return torch.ones(len(main), dtype=torch.bool, device=main.device)
        return entropy_of(main) > self.unsure

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        is_open = inputs.values[OPEN].bool()
        with torch.no_grad():
            entropy = entropy_of(head.post(head.product(inputs.h)))
            blind = self._blind_or_own(inputs.h, inputs.branches[0], is_open)
            is_first = bool((inputs.values[POSITION] == 1).all())
            moved = self.bind(head).states(inputs.h, blind, entropy, strength, is_first=is_first)
        return torch.where(self._touched(is_open), moved, inputs.h)

    def _blind_or_own(self, h: Tensor, blind: Tensor, is_open: Tensor) -> Tensor:
        return torch.where(is_open.to(h.device).unsqueeze(-1), blind, h)

    def _touched(self, is_open: Tensor) -> Tensor:
        return (is_open | self.touches_all).unsqueeze(-1)  # [B, 1]
