"""What directions of the head's input say in words: which tokens each raises and lowers through the head (W V).

A constant over the vocabulary does not change a prediction, so changes are centred: over the tokens that spell something.
Special tokens, rows of the head that no token has, bare whitespace and pieces of characters are left out. The sign of a principal
direction is arbitrary: here each points to where the mean blind state lies, so that what it raises is what blind states
favour along it and what taking it away lowers. Where the model caps its logits, changes are those before the cap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mgap.backbones.head import Head
from mgap.errors import SettingError

_BRACKETED = re.compile(r"<\S+>|\[\S+\]")  # <unused7>, <|im_end|>, [UNK]


@dataclass(frozen=True)
class Word:
    """A token as it is spelled, a space before it kept, and how its logit changes."""

    token: int
    text: str
    change: float


@dataclass(frozen=True)
class Direction:
    """One direction of a subspace, oriented to the mean blind state; changes of words are for a step of length 1."""

    number: int  # from 1, by singular value
    spread: float  # standard deviation of the blind states along it: change * spread is the change for one of these
    mean: float  # the mean blind state's coefficient, >= 0
    readout: float | None  # cosine with W[yes] - W[no]
    up: tuple[Word, ...]  # the most raised first
    down: tuple[Word, ...]  # the most lowered first


@dataclass(frozen=True)
class Readout:
    """Two answers against each other, and how much of the line between them lies in a subspace."""

    up: Word  # of the spellings that are one token, the one that the mean blind state rates higher; change: its logit there
    down: Word
    share: float  # |V'w|^2 / |w|^2, 0..1, of w = W[up] - W[down]
    chance: float  # K / d: what it is for a random subspace


@dataclass(frozen=True)
class Step:
    """What taking the whole subspace away (beta = 1) does on average to the logits of some states: -(W V)(V'h)."""

    states: str  # whose they are
    count: int
    held: float  # mean |V'h| / |h|: how much of a state lies in the subspace
    up: tuple[Word, ...]
    down: tuple[Word, ...]
    readout: float | None  # mean change of the log-odds of up against down
    readout_spread: float | None  # its standard deviation: a step that is the same for all states moves a threshold only


def spellings(tokenizer: Any, size: int) -> dict[int, str]:
    """Token -> its text, of every token below `size` that spells something; a space before a word is kept."""
    anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]  # decoders drop the space of a text's first token
    ids = range(min(size, len(tokenizer)))
    texts = tokenizer.batch_decode([[*anchor, token] for token in ids], clean_up_tokenization_spaces=False)
    before = len(tokenizer.decode(anchor, clean_up_tokenization_spaces=False))
    hidden = {*tokenizer.all_special_ids}
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special or _BRACKETED.fullmatch(str(added)):
            hidden.add(token)
    spelled = {token: text[before:] for token, text in zip(ids, texts, strict=True) if token not in hidden}
    return {token: text for token, text in spelled.items() if text.strip() and "\ufffd" not in text}


def orient(basis: Tensor, mean: Tensor) -> Tensor:
    """The same directions [d, K], each turned so that the coefficient of `mean` [d] along it is not negative."""
    return torch.where(mean.to(basis) @ basis < 0, -basis, basis)


def word_table(head: Head, basis: Tensor, tokens: Sequence[int]) -> Tensor:
    """Logit changes [K, tokens] float64 for a unit step along each direction [d, K], centred over these tokens."""
    if not tokens:
        raise SettingError("no token of this model spells anything: give it its own tokenizer")
    table = head.scale * head.table(basis).double().cpu()[:, list(tokens)]
    return table - table.mean(1, keepdim=True)


def extremes(changes: Tensor, spelled: dict[int, str], count: int) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """The `count` most raised and most lowered words; changes [tokens] are in the order of `spelled`."""
    words = [Word(token, text, value) for (token, text), value in zip(spelled.items(), changes.tolist(), strict=True)]
    words.sort(key=lambda word: -word.change)
    return tuple(words[:count]), tuple(words[: -count - 1 : -1])


def read_directions(
    table: Tensor, basis: Tensor, mean: Tensor, spreads: Tensor, spelled: dict[int, str], *, words: int, line: Tensor | None
) -> tuple[Direction, ...]:
    """All directions [d, K] of an oriented basis, from their table [K, tokens]; `line` [d] is W[yes] - W[no]."""
    coefficients = (mean.to(basis) @ basis).tolist()
    cosines = [None] * basis.shape[1] if line is None else (line.to(basis) @ basis / line.norm()).tolist()
    found = []
    for number, row in enumerate(table):
        up, down = extremes(row, spelled, words)
        found.append(Direction(number + 1, float(spreads[number]), coefficients[number], cosines[number], up, down))
    return tuple(found)


def read_answers(head: Head, basis: Tensor, mean: Tensor, spelled: dict[int, str], up: set[int], down: set[int]) -> Readout:
    """The readout of two words, each given by the tokens that spell it."""
    logits = head.scale * head.table(mean.unsqueeze(1))[0].double().cpu()  # [vocab], without the bias
    yes, no = (max(tokens, key=lambda token: float(logits[token])) for tokens in (up, down))
    chosen = [Word(token, spelled.get(token, ""), float(logits[token])) for token in (yes, no)]
    line = answer_line(head, yes, no).to(basis)
    share = float((line @ basis).square().sum() / line.square().sum())
    return Readout(*chosen, share, basis.shape[1] / basis.shape[0])


def answer_line(head: Head, up: int, down: int) -> Tensor:
    """w = W[up] - W[down] [d] float64: the log-odds of one token against the other are w'h."""
    one, other = head.scale * head.rows([up, down]).double().cpu()
    return one - other


def average_step(
    label: str, table: Tensor, basis: Tensor, states: Tensor, spelled: dict[int, str], *, words: int, line: Tensor | None
) -> Step:
    """The step's mean over states [n, d]; the table is that of the same basis."""
    states = states.to(basis)
    inside = states @ basis  # [n, K]
    up, down = extremes(-inside.mean(0) @ table, spelled, words)
    held = float((inside.norm(dim=1) / states.norm(dim=1).clamp_min(1e-12)).mean())
    if line is None:
        return Step(label, len(states), held, up, down, None, None)
    moved = -inside @ (line.to(basis) @ basis)  # [n]
    spread = float(moved.std()) if len(moved) > 1 else 0.0
    return Step(label, len(states), held, up, down, float(moved.mean()), spread)
