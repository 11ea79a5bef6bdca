"""Bias: raise the logits of some words by a constant and lower those of others. It reads neither picture nor prompt.

    l'[v] = l[v] + shift / 2 for v in up,   l[v] - shift / 2 for v in down

so the log-odds of `up` against `down` move by `shift`, whatever the input. On yes/no questions this trades precision for
recall along the model's own curve: a method that does not beat the best shift has shown nothing there. The shift belongs to a
model and a benchmark; choose it on other pictures than those it is evaluated on. It acts at EVERY step, not only at the first
word: a caption that says "no" is shifted as well. Seam: the head's output. Cost: 1 forward per token and one addition per
shifted token id. All decoding modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.base import Observation, Tap
from mgap.methods.kinds.head import HeadMethod
from mgap.settings import check_signed


def check_words(name: str, given: Any) -> tuple[str, ...]:
    """One word, or several."""
    words = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise SettingError(f'{name}={given!r} must be words; YAML reads a bare Yes or no as true or false: write ["Yes", "no"]')
    return tuple(word.strip() for word in words)


def token_ids(word: str, tokenizer: Any) -> set[int]:
    """A word's tokens at the start of an answer and after a space. A spelling of several tokens is left out.

    Refuses a word that is a single token in neither position: its pieces also belong to other words.
    """
    spellings = (tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}"))
    single = {ids[0] for ids in spellings if len(ids) == 1} - {tokenizer.unk_token_id}
    if not single:
        pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode(word, add_special_tokens=False))
        raise SettingError(f"{word!r} is not one token of this model, but {pieces}: give words that are (settings up and down)")
    return single


def opposed_token_ids(up: Sequence[str], down: Sequence[str], tokenizer: Any) -> tuple[set[int], set[int]]:
    """The ids of both sides; refuses words that are not single tokens, and tokens in both."""
    first, second = (set[int]().union(*(token_ids(word, tokenizer) for word in words)) for words in (up, down))
    if shared := first & second:
        raise SettingError(f"up and down share the tokens {tokenizer.convert_ids_to_tokens(sorted(shared))}: name other words")
    return first, second


def shift_logits(logits: Tensor, up: Tensor, down: Tensor, shift: float) -> Tensor:
    """The formula above on [..., vocab]; `up` and `down` are token ids."""
    shifted = logits.clone()
    shifted[..., up] += shift / 2
    shifted[..., down] -= shift / 2
    return shifted


def log_odds(logits: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """How far the likeliest of `up` is ahead of the likeliest of `down` in logits [..., vocab]: [...].

    A greedy choice between them turns at the shift that is the negative of it.
    """
    return logits[..., up].amax(-1) - logits[..., down].amax(-1)


class LogitShift:
    """A bias bound to one head. Called as that head's forward hook."""

    def __init__(self, up: set[int], down: set[int], shift: float, head: Head, tap: Tap) -> None:
        self.up, self.down = (torch.tensor(sorted(ids), device=head.device) for ids in (up, down))
        self.shift, self.head, self.tap = shift, head, tap

    def __call__(self, _module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        listener = self.tap.listener
        if self.shift == 0 and listener is None:
            return output
        logits = self.head.post(output.to(self.head.wide))  # [B, T, vocab]
        shifted = shift_logits(logits, self.up, self.down, self.shift)
        if listener is not None:
            p = logits.softmax(-1)
            masses = {"up": p[..., self.up].sum(-1), "down": p[..., self.down].sum(-1)}  # [B, T], of the plain prediction
            listener(Observation(masses, logits, shifted))
        return output if self.shift == 0 else self.head.unpost(shifted)  # bit-equal at shift 0


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
        up, down = self.tokens(backbone.tokenizer)
        head.unpost(torch.zeros(()))  # refuses a soft cap now rather than at the first token
        return LogitShift(up, down, self.shift, head, tap)
