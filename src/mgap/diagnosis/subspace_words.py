"""What directions of the head's input say in words: which tokens each raises and lowers through the head (W V).

A constant over the vocabulary does not change a prediction, so changes are centred: over the tokens that spell something.
Special tokens, rows of the head that no token has, bare whitespace, control signs and pieces of characters are left out.
The sign of a principal direction is arbitrary: here each points to where the mean blind state lies, so that what it raises
is what blind states favour along it and what taking it away lowers. Where the model caps its logits, changes are those
before the cap.
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

_AT_ONCE = 1 << 13  # states in float64
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
class DirectionReadout:
    """Two answers against each other, and how much of the line between them lies in a subspace."""

    up: str  # as it is spelled: of the spellings that are one token, the one that the mean blind state rates higher
    down: str
    tokens: tuple[int, int]
    share: float  # |V'w|^2 / |w|^2, 0..1, of w = W[up] - W[down]
    chance: float  # K / d: what it is on average for a random subspace


class AnswerLine(NamedTuple):
    """The log-odds of one answer's token against another's are w'h + bias."""

    w: Tensor  # [d] float64, W[up] - W[down]
    bias: float

    def odds(self, states: Tensor) -> Tensor:
        """[n] of states [n, d]."""
        return states @ self.w.to(states) + self.bias


@dataclass(frozen=True)
class MovedOdds:
    """What a step does to the log-odds of two answers: over states, change = intercept + slope * odds, as well as a line can.

    After a step of strength beta the odds are (1 + beta slope) odds + beta intercept. Where the line fits, the step shrinks
    all odds alike, which decides nothing, and moves the threshold between the answers, which a constant does as well.
    """

    mean: float
    spread: float  # standard deviation over states
    slope: float
    intercept: float
    fit: float  # share of the changes' variance that the line explains, 0..1

    @classmethod
    def of(cls, odds: Tensor, change: Tensor) -> MovedOdds | None:
        """From odds and changes [n]; None where they do not vary."""
        if len(odds) < 2 or float(odds.std()) == 0 or float(change.std()) == 0:
            return None
        slope = float(((odds - odds.mean()) * (change - change.mean())).mean() / odds.var(correction=0))
        intercept = float(change.mean() - slope * odds.mean())
        left = (change - intercept - slope * odds).var(correction=0)
        return cls(float(change.mean()), float(change.std()), slope, intercept, 1 - float(left / change.var(correction=0)))


@dataclass(frozen=True)
class AverageStep:
    """What taking the whole subspace away (beta = 1) does on average to the logits of some states: -(W V)(V'h)."""

    states: str  # whose they are
    count: int
    held: float  # mean |V'h| / |h|: how much of a state lies in the subspace
    up: tuple[Word, ...]
    down: tuple[Word, ...]
    answers: MovedOdds | None  # what it does to two answers


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
    return {token: text for token, text in spelled.items() if _has_ink(text)}


def _has_ink(text: str) -> bool:
    bare = text.strip()
    return bool(bare) and bare.isprintable() and "\ufffd" not in bare  # a lone byte of a character decodes to the last


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
    table: Tensor, basis: Tensor, prior: Subspace, spelled: dict[int, str], *, words: int, line: AnswerLine | None
) -> tuple[Direction, ...]:
    """All directions of the prior's oriented basis [d, K], from their table [K, tokens]; `line` is between two answers."""
    coefficients = (prior.mean.to(basis) @ basis).tolist()
    spreads = (prior.singular_values / max(prior.count - 1, 1) ** 0.5).tolist()
    cosines = [None] * basis.shape[1] if line is None else (line.w.to(basis) @ basis / line.w.norm()).tolist()
    found = []
    for number, row in enumerate(table):
        up, down = extremes(row, spelled, words)
        found.append(Direction(number + 1, spreads[number], coefficients[number], cosines[number], up, down))
    return tuple(found)


def read_answers(
    head: Head, basis: Tensor, mean: Tensor, spelled: dict[int, str], up: set[int], down: set[int]
) -> DirectionReadout:
    """The readout of two words, each given by the tokens that spell it."""
    with torch.no_grad():
        logits = head.post(head.product(mean.to(head.device).unsqueeze(0)).to(head.wide))[0]  # [vocab]
    yes, no = (max(sorted(tokens), key=lambda token: float(logits[token])) for tokens in (up, down))
    if yes == no:
        raise SettingError(f"both answers are the token {spelled[yes]!r}: name two words, such as Yes and No")
    share = share_inside(answer_line(head, (yes, no)).w, basis)
    return DirectionReadout(spelled[yes], spelled[no], (yes, no), share, basis.shape[1] / basis.shape[0])


def answer_line(head: Head, tokens: tuple[int, int]) -> AnswerLine:
    """The line between two tokens, up and down."""
    rows = head.scale * head.rows(tokens).double().cpu()  # [2, d]
    bias = 0.0 if head.bias is None else head.scale * float(head.bias[tokens[0]] - head.bias[tokens[1]])
    return AnswerLine(rows[0] - rows[1], bias)


def average_step(
    label: str, table: Tensor, basis: Tensor, states: Tensor, spelled: dict[int, str], *, words: int, line: AnswerLine | None
) -> AverageStep:
    """The step's mean over states [n, d]; the table is that of the same basis."""
    if states.ndim != 2 or len(states) == 0 or states.shape[1] != basis.shape[0]:
        raise SettingError(f"states {label!r} are {list(states.shape)}: give [n, {basis.shape[0]}], the model's head inputs")
    inside, norms, odds = [], [], []
    for part in states.split(_AT_ONCE):
        rows = part.to(basis)
        inside.append(rows @ basis)  # [part, K]
        norms.append(rows.norm(dim=1))
        odds.append(rows.new_zeros(len(rows)) if line is None else line.odds(rows))
    coeff, norm = torch.cat(inside), torch.cat(norms)  # [n, K], [n]
    up, down = extremes(-coeff.mean(0) @ table, spelled, words)
    held = float((coeff.norm(dim=1) / norm.clamp_min(1e-12)).mean())
    moved = None if line is None else MovedOdds.of(torch.cat(odds), -coeff @ (line.w.to(basis) @ basis))
    return AverageStep(label, len(states), held, up, down, moved)
