"""Methods that oppose some words to others, such as yes to no: the tokens of both, and the hook that corrects logits by them.

Words are given as text, and looked up in the model's tokenizer when a method is attached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.base import Observation, Tap


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


def log_odds(logits: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """How far the likeliest of `up` is ahead of the likeliest of `down` in logits [..., vocab]: [...].

    A greedy choice between them turns at the shift that is the negative of it.
    """
    return logits[..., up].amax(-1) - logits[..., down].amax(-1)


class WordCorrection(ABC):
    """A correction of logits by the tokens of two sides, bound to one head. Called as that head's forward hook."""

    def __init__(self, words: tuple[set[int], set[int]], head: Head, tap: Tap, *, is_zero: bool) -> None:
        self.up, self.down = (torch.tensor(sorted(ids), device=head.device) for ids in words)
        self.head, self.tap, self.is_zero = head, tap, is_zero
        head.unpost(torch.zeros(()))  # refuses a soft cap now rather than at the first token

    @abstractmethod
    def correct(self, logits: Tensor) -> Tensor:
        """New logits of the plain ones [..., vocab], which stay as they are."""

    def values(self, logits: Tensor) -> dict[str, Tensor]:
        """What a trace shows [...]: the probability of each side in the plain prediction."""
        p = logits.softmax(-1)
        return {"up": p[..., self.up].sum(-1), "down": p[..., self.down].sum(-1)}

    def __call__(self, _module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        listener = self.tap.listener
        if self.is_zero and listener is None:
            return output
        logits = self.head.post(output.to(self.head.wide))  # [B, T, vocab]
        corrected = self.correct(logits)
        if listener is not None:
            listener(Observation(self.values(logits), logits, corrected))
        return output if self.is_zero else self.head.unpost(corrected)  # bit-equal at the method's zero
