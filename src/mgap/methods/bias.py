"""Bias: raise the logits of some words by a constant and lower those of others. It reads neither picture nor prompt.

    l'[v] = l[v] + shift / 2 for v in up,   l[v] - shift / 2 for v in down

so the log-odds of `up` against `down` move by `shift`, whatever the input. On yes/no questions this trades precision for
recall along the model's own curve: a method that does not beat the best shift has shown nothing there. The shift belongs to a
model and a benchmark; choose it on other pictures than those it is evaluated on. It acts at EVERY step, not only at the first
word: a caption that says "no" is shifted as well. Seam: the head's output. Cost: 1 forward per token and one addition per
shifted token id. All decoding modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.methods.base import Tap
from mgap.methods.kinds.head import HeadMethod
from mgap.methods.kinds.opposed_words import WordCorrection, check_words, opposed_token_ids
from mgap.settings import check_signed


def shift_logits(logits: Tensor, up: Tensor, down: Tensor, shift: float) -> Tensor:
    """The formula above on [..., vocab]; `up` and `down` are token ids."""
    shifted = logits.clone()
    shifted[..., up] += shift / 2
    shifted[..., down] -= shift / 2
    return shifted


class LogitShift(WordCorrection):
    """A bias bound to one head."""

    def __init__(self, words: tuple[set[int], set[int]], shift: float, head: Head, tap: Tap) -> None:
        super().__init__(words, head, tap, is_zero=shift == 0)
        self.shift = shift

    def correct(self, logits: Tensor) -> Tensor:
        return shift_logits(logits, self.up, self.down, self.shift)


@dataclass(frozen=True)
class Bias(HeadMethod):
    """A constant shift: positive favours `up`, negative `down`. Words are given as text; tokens are looked up on attaching."""

    name: ClassVar[str] = "bias"
    summary: ClassVar[str] = "shift the logits of some words by a constant (yes against no)"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"shift": 0.0})
    no_state: ClassVar[str] = "adds a constant to the logits of some words, which in general no input of the head makes"

    shift: float
    up: tuple[str, ...] = ("Yes", "yes")
    down: tuple[str, ...] = ("No", "no")

    def __post_init__(self) -> None:
        check_signed("shift", self.shift)
        for name in ("up", "down"):
            object.__setattr__(self, name, check_words(name, getattr(self, name)))

    def tokens(self, tokenizer: Any) -> tuple[set[int], set[int]]:
        """The ids of `up` and of `down`."""
        return opposed_token_ids(self.up, self.down, tokenizer)

    def correction(self, backbone: Backbone, head: Head, tap: Tap) -> LogitShift:
        return LogitShift(self.tokens(backbone.tokenizer), self.shift, head, tap)
