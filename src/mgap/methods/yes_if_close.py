"""Yes if close (Yin et al., 2025, arXiv 2504.10020, "output layer modification"): say yes wherever yes and no are close.

    p = softmax(l),   Y = sum of p over up,   N = sum of p over down
    Y + N > mass and |Y - N| < margin:   l'[v] = -inf for v not in up          else   l' = l

A control like bias.py: it reads neither picture nor prompt, and a method of yes/no questions that does no better has shown
nothing. Where up and down have all of the probability, it answers as a bias with the shift ln((1 + margin) / (1 - margin)),
ln 3 as published; where they have less than the margin together, always with `up`. It acts at every step, as the authors' code
does: a caption that may say no is touched too. Seam: the head's output. Cost: 1 forward per token and a softmax. All decoding
modes; the code is greedy, for one row, and knows one token a word. Here words are looked up as for a bias, rows are
independent, and sampling and beams choose among the tokens of `up`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.methods.base import Tap
from mgap.methods.kinds.head import HeadMethod
from mgap.methods.kinds.opposed_words import WordCorrection, check_words, opposed_token_ids
from mgap.settings import check_share

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"yes-if-close": {"up": ("Yes",), "down": ("No",)}, "no-if-close": {"up": ("No",), "down": ("Yes",)}}
)


def choose_if_close(logits: Tensor, up: Tensor, down: Tensor, mass: float, margin: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The formula above on [..., vocab], with Y, N and whether they are close [...]; `up` and `down` are token ids."""
    p = logits.softmax(-1)
    yes, no = p[..., up].sum(-1), p[..., down].sum(-1)
    is_close = (yes + no > mass) & ((yes - no).abs() < margin)
    is_dropped = is_close.unsqueeze(-1).expand_as(logits).index_fill(-1, up, False)
    return logits.masked_fill(is_dropped, -torch.inf), {"up": yes, "down": no, "close": is_close.to(p)}


class CloseChoice(WordCorrection):
    """Yes if close, bound to one head."""

    def __init__(self, words: tuple[set[int], set[int]], mass: float, margin: float, head: Head, tap: Tap) -> None:
        super().__init__(words, head, tap, is_zero=margin == 0)
        self.mass, self.margin = mass, margin

    def correct(self, logits: Tensor) -> Tensor:
        return choose_if_close(logits, self.up, self.down, self.mass, self.margin)[0]

    def values(self, logits: Tensor) -> dict[str, Tensor]:
        return choose_if_close(logits, self.up, self.down, self.mass, self.margin)[1]


@dataclass(frozen=True)
class YesIfClose(HeadMethod):
    """Choose `up` where it and `down` are close. The preset names the words that are not given: yes over no, or no over yes."""

    name: ClassVar[str] = "yes-if-close"
    summary: ClassVar[str] = "say yes (or no) wherever yes and no are close"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"margin": 0.0})
    no_state: ClassVar[str] = "drops tokens by a threshold, which in general no input of the head does"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    mass: float = 0.2
    margin: float = 0.5
    preset: str = "yes-if-close"
    up: tuple[str, ...] | None = None
    down: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_share("mass", self.mass)
        check_share("margin", self.margin)
        self.fill_from_preset()
        for name in ("up", "down"):
            object.__setattr__(self, name, check_words(name, getattr(self, name)))

    def correction(self, backbone: Backbone, head: Head, tap: Tap) -> CloseChoice:
        words = opposed_token_ids(self.up or (), self.down or (), backbone.tokenizer)
        return CloseChoice(words, self.mass, self.margin, head, tap)
