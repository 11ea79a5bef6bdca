"""Directions of the head's input in words: the tokens that each raises and lowers through the head (W V).

A constant over the vocabulary does not change a prediction, so changes are centred over the tokens that spell something.
Special tokens, rows of the head without a token, bare whitespace, control characters and partial characters are left out. The
sign of a principal direction is arbitrary; here each points towards the mean blind state, so it raises what blind states favour
along it, and removing it lowers the same. If the model caps its logits, changes are those before the cap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mgap.backbones.head import Head
from mgap.diagnosis.principal_angles import share_inside
from mgap.errors import SettingError
from mgap.priors.subspace import Subspace

_CHUNK = 1 << 13  # states at once, in float64
_BRACKETED = re.compile(r"<\S+>|\[\S+\]")  # <unused7>, <|im_end|>, [UNK]


@dataclass(frozen=True)
class Word:
    """A token, its text with any leading space, and the change of its logit."""

    token: int
    text: str
    change: float


@dataclass(frozen=True)
class Direction:
    """One direction of a subspace, oriented towards the mean blind state; word changes are for a step of length 1."""

    number: int  # from 1, by singular value
    spread: float  # standard deviation of the blind states along it; change * spread is the change for one of these
    mean: float  # the mean blind state's coefficient, >= 0
    readout: float | None  # cosine with W[yes] - W[no]
    up: tuple[Word, ...]  # the most raised first
    down: tuple[Word, ...]  # the most lowered first


@dataclass(frozen=True)
class DirectionReadout:
    """Two answers, and how much of the line between them lies in a subspace."""

    up: str  # the spelling, of those that are one token, with the higher logit at the mean blind state
    down: str
    tokens: tuple[int, int]
    share: float  # |V'w|^2 / |w|^2, 0..1, of w = W[up] - W[down]
    chance: float  # K / d: the mean share for a random subspace


class AnswerLine(NamedTuple):
    """The log-odds of one answer's token against another's are w'h + bias."""

    w: Tensor  # [d] float64, W[up] - W[down]
    bias: float

    def odds(self, states: Tensor) -> Tensor:
        """The log-odds [n] at states [n, d]."""
        return states @ self.w.to(states) + self.bias


@dataclass(frozen=True)
class MovedOdds:
    """The effect of a step on the log-odds of two answers, fitted by a line over states: change = intercept + slope * odds.

    After a step of strength beta the odds are (1 + beta slope) odds + beta intercept. If the line fits, the step shrinks all
    odds alike, which decides nothing, and moves the threshold between the answers, which a constant could do as well.
    """

    mean: float
    spread: float  # standard deviation over states
    slope: float
    intercept: float
    fit: float  # share of the changes' variance that the line explains, 0..1

    @classmethod
    def of(cls, odds: Tensor, change: Tensor) -> MovedOdds | None:
        """From odds and changes [n]; None if they do not vary."""
        if len(odds) < 2 or float(odds.std()) == 0 or float(change.std()) == 0:
            return None
        slope = float(((odds - odds.mean()) * (change - change.mean())).mean() / odds.var(correction=0))
        intercept = float(change.mean() - slope * odds.mean())
        residual = (change - intercept - slope * odds).var(correction=0)
        return cls(float(change.mean()), float(change.std()), slope, intercept, 1 - float(residual / change.var(correction=0)))


@dataclass(frozen=True)
class AverageStep:
    """The mean effect of removing the whole subspace (beta = 1) on the logits of some states: -(W V)(V'h)."""

    states: str  # their name
    count: int
    held: float  # mean |V'h| / |h|: how much of a state lies in the subspace
    up: tuple[Word, ...]
    down: tuple[Word, ...]
    answers: MovedOdds | None  # the effect on two answers


def spellings(tokenizer: Any, size: int) -> dict[int, str]:
    """The text of every token below `size` that spells something, with any leading space."""
    anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]  # decoders drop the leading space of a text's first token
    ids = range(min(size, len(tokenizer)))
    texts = tokenizer.batch_decode([[*anchor, token] for token in ids], clean_up_tokenization_spaces=False)
    before = len(tokenizer.decode(anchor, clean_up_tokenization_spaces=False))
    hidden = {*tokenizer.all_special_ids}
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special or _BRACKETED.fullmatch(str(added)):
            hidden.add(token)
    spelled = {token: text[before:] for token, text in zip(ids, texts, strict=True) if token not in hidden}
    return {token: text for token, text in spelled.items() if _is_printable(text)}


def _is_printable(text: str) -> bool:
    bare = text.strip()
    return bool(bare) and bare.isprintable() and "\ufffd" not in bare  # U+FFFD: a lone byte of a character


def orient(basis: Tensor, mean: Tensor) -> Tensor:
    """The directions [d, K], each signed so that the coefficient of `mean` [d] along it is not negative."""
    return torch.where(mean.to(basis) @ basis < 0, -basis, basis)


def word_table(head: Head, basis: Tensor, tokens: Sequence[int]) -> Tensor:
    """Logit changes [K, tokens] float64 for a unit step along each direction [d, K], centred over these tokens."""
    if not tokens:
        raise SettingError("no token of this model spells anything: give it its own tokenizer")
    table = head.scale * head.table(basis).double().cpu()[:, list(tokens)]
    return table - table.mean(1, keepdim=True)


def extremes(changes: Tensor, spelled: dict[int, str], count: int) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """The `count` most raised and most lowered words; `changes` [tokens] are in the order of `spelled`."""
    words = [Word(token, text, value) for (token, text), value in zip(spelled.items(), changes.tolist(), strict=True)]
    words.sort(key=lambda word: -word.change)
    return tuple(words[:count]), tuple(words[: -count - 1 : -1])


def read_directions(
    table: Tensor, basis: Tensor, prior: Subspace, spelled: dict[int, str], *, words: int, line: AnswerLine | None
) -> tuple[Direction, ...]:
    """The words of the prior's oriented basis [d, K], from its table [K, tokens]; `line` is between two answers."""
    coefficients = (prior.mean.to(basis) @ basis).tolist()
    spreads = (prior.singular_values / max(prior.count - 1, 1) ** 0.5).tolist()
    cosines = [None] * basis.shape[1] if line is None else (line.w.to(basis) @ basis / line.w.norm()).tolist()
    directions = []
    for number, row in enumerate(table):
        up, down = extremes(row, spelled, words)
        directions.append(Direction(number + 1, spreads[number], coefficients[number], cosines[number], up, down))
    return tuple(directions)


def read_answers(
    head: Head, basis: Tensor, mean: Tensor, spelled: dict[int, str], up: set[int], down: set[int]
) -> DirectionReadout:
    """The readout of two answers, each given by the tokens that spell it."""
    with torch.no_grad():
        logits = head.post(head.product(mean.to(head.device).unsqueeze(0)))[0]  # [vocab]
    yes, no = (max(sorted(tokens), key=lambda token: float(logits[token])) for tokens in (up, down))
    if yes == no:
        raise SettingError(f"both answers are the token {spelled[yes]!r}: name two words, such as Yes and No")
    share = share_inside(answer_line(head, (yes, no)).w, basis)
    return DirectionReadout(spelled[yes], spelled[no], (yes, no), share, basis.shape[1] / basis.shape[0])


def answer_line(head: Head, tokens: tuple[int, int]) -> AnswerLine:
    """The line between two tokens, (up, down)."""
    rows = head.scale * head.rows(tokens).double().cpu()  # [2, d]
    bias = 0.0 if head.bias is None else head.scale * float(head.bias[tokens[0]] - head.bias[tokens[1]])
    return AnswerLine(rows[0] - rows[1], bias)


def average_step(
    label: str, table: Tensor, basis: Tensor, states: Tensor, spelled: dict[int, str], *, words: int, line: AnswerLine | None
) -> AverageStep:
    """The mean step over states [n, d]; `table` belongs to the same basis."""
    if states.ndim != 2 or len(states) == 0 or states.shape[1] != basis.shape[0]:
        raise SettingError(f"states {label!r} are {list(states.shape)}: give [n, {basis.shape[0]}], the model's head inputs")
    inside, norms, odds = [], [], []
    for part in states.split(_CHUNK):
        rows = part.to(basis)
        inside.append(rows @ basis)  # [part, K]
        norms.append(rows.norm(dim=1))
        odds.append(rows.new_zeros(len(rows)) if line is None else line.odds(rows))
    coeff, norm = torch.cat(inside), torch.cat(norms)  # [n, K], [n]
    up, down = extremes(-coeff.mean(0) @ table, spelled, words)
    held = float((coeff.norm(dim=1) / norm.clamp_min(1e-12)).mean())
    moved = None if line is None else MovedOdds.of(torch.cat(odds), -coeff @ (line.w.to(basis) @ basis))
    return AverageStep(label, len(states), held, up, down, moved)
