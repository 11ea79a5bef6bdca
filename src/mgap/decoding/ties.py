"""Count the tokens of greedy answers that were chosen among equals.

In 16 bits the head's output is rounded, and now and then two tokens have the best score to the bit. The choice then takes the
lower token id, and any change of the scores, however small, can turn it. Sampling and searches do not choose the best score of
a step, and assisted decoding checks several tokens in one step: there is nothing to count.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import LogitsProcessor

from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Method, Seam
from mgap.types import Mode


class TieCounter(LogitsProcessor):
    """Put last, it sees the scores as the choice sees them. Changes nothing, and does not wait for the device."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []  # [B] each: whether more than one token has the best score

    def __call__(self, _input_ids: Tensor | None, scores: Tensor) -> Tensor:
        best = scores.amax(-1, keepdim=True)
        self.steps.append((scores == best).sum(-1) > 1)
        return scores

    def rows(self) -> list[list[bool]]:
        """By row and step, whether the choice was among equals; padding included, so cut it where the answer ends."""
        steps: list[list[bool]] = torch.stack(self.steps, 1).tolist()
        return steps


def uncountable(modes: frozenset[Mode], methods: Iterable[Method]) -> str:
    """Why ties cannot be counted in these modes under these methods; "" if they can."""
    if Mode.GREEDY not in modes or Mode.ASSISTED in modes:
        named = ", ".join(sorted(mode.value for mode in modes & {Mode.SAMPLE, Mode.BEAM, Mode.ASSISTED}))
        return f"ties are counted in greedy decoding only, and this is {named} decoding"
    searches = [method.name for method in methods if method.seam is Seam.SEARCH]
    return f"ties are counted in greedy decoding only, and {searches[0]} is a search of its own" if searches else ""


def refuse_uncountable(modes: frozenset[Mode], methods: Iterable[Method]) -> None:
    if reason := uncountable(modes, methods):
        raise UnsupportedDecoding(f"{reason}: leave count_ties out")
