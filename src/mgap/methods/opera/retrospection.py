"""OPERA's bookkeeping for one sample: the penalty on its candidates, where attention collapses, and when to go back.

A step chooses one token per beam and saves the state it started from. If every beam has collapsed onto one word more than r
times, the search returns to the state after that word and chooses another token there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mgap.methods.opera.beams import Beams
from mgap.methods.opera.overtrust import EARLY, collapse, lengthen, most_common, penalise, penalty

NON_CANDIDATE = 999.0  # subtracted from the logits of tokens that are not candidates


class Strength(NamedTuple):
    """The method's settings."""

    alpha: float
    sigma: float
    candidates: int  # N_can: also how often the search may return to one position
    r: int
    window: int  # saved states


class Lookahead(NamedTuple):
    """The candidates' weights on the answer so far and themselves, and on the picture."""

    words: Tensor  # [beams, N, n]
    image: Tensor  # [beams, N]


@dataclass(frozen=True)
class RetrospectionState:
    """The state at the start of a step, before the model has read the newest token."""

    beams: Beams
    columns: Tensor  # [beams, k - 1] sums of ln(sigma w) per word, up to the last row but one
    history: Tensor  # [beams, k] the column that each earlier step collapsed onto; follows the beams


class CandidateWeights(NamedTuple):
    """One step's scores [beams, vocab], and its numbers, each [beams]."""

    scores: Tensor
    penalty: Tensor  # of the leading candidate
    image: Tensor
    column: Tensor


class Retrospection:
    """OPERA's part of one sample's search."""

    def __init__(self, strength: Strength, beams: Beams) -> None:
        self.strength = strength
        empty = beams.tokens.new_zeros(len(beams.tokens), 0)
        self.state = RetrospectionState(beams, empty.float(), empty)
        self.saved: OrderedDict[int, RetrospectionState] = OrderedDict()  # by the number of tokens
        self.returns: Counter[int] = Counter()  # how often the search has returned to a position
        self.banned: dict[int, Tensor] = {}  # position -> tokens chosen there before
        self.has_returned = False  # the current step repeats an earlier one

    @property
    def beams(self) -> Beams:
        return self.state.beams

    def read(self, newest: Tensor | None) -> None:
        """Start a step: save its state, and add the newest token's weights on the answer [beams, k]."""
        self.saved[self.beams.length] = self.state
        while len(self.saved) > self.strength.window:
            self.saved.popitem(last=False)
        if newest is not None:
            self.state = replace(self.state, columns=lengthen(self.state.columns, newest, self.strength.sigma))

    def weigh(self, logits: Tensor, candidates: Tensor, ahead: Lookahead) -> CandidateWeights:
        """Scores from logits [beams, vocab] and the attention of the candidates [beams, N], and where it collapses."""
        columns = self.state.columns.unsqueeze(1).expand(-1, candidates.shape[1], -1)
        phi, collapsed = collapse(lengthen(columns, ahead.words, self.strength.sigma))  # [beams, N]
        column = most_common(collapsed)
        self.state = replace(self.state, history=torch.cat([self.state.history, column.unsqueeze(1)], dim=1))
        rho = penalty(phi, ahead.image, self.beams.length + 1)
        chosen = logits.gather(1, candidates)
        # only differences among candidates matter: subtract the smallest, so that a huge phi does not swamp the other logits
        adjusted = penalise(chosen, rho - rho.amin(1, keepdim=True), self.strength.alpha)
        first = adjusted.argmax(1, keepdim=True)
        scores = (logits - NON_CANDIDATE).scatter(1, candidates, adjusted)
        if self.has_returned:
            scores = self._without_banned(logits)
        return CandidateWeights(scores, rho.gather(1, first)[:, 0], ahead.image.gather(1, first)[:, 0], column)

    def _without_banned(self, logits: Tensor) -> Tensor:
        """Scores of a repeated step: plain logits, with tokens chosen here before set to the lowest."""
        lowest = logits.min(1, keepdim=True).values
        banned = self.banned[self.beams.length]
        return logits.scatter(1, banned.expand(len(logits), -1), lowest.expand(-1, len(banned)))

    def goes_back(self) -> bool:
        """Return to an earlier state if every beam keeps collapsing onto one word and returns to it are left."""
        if self.has_returned:
            self.has_returned = False  # this step chooses again; nothing was read since
            return False
        live = self.state.history[self.beams.live]  # [live, k + 1]
        common = most_common(live[:, -1])
        word, fewest = int(common), int((live == common).sum(1).min())
        if word < EARLY or fewest <= self.strength.r:
            return False
        for position in (word + 1, word):
            if self.returns[position] < self.strength.candidates:
                return self._return_to(position)
        return False

    def _return_to(self, position: int) -> bool:
        if position >= self.beams.length or position not in self.saved:  # nothing was chosen there yet, or it is too long ago
            return False
        tokens = self.beams.tokens[self.beams.live, position]
        self.banned[position] = torch.cat([self.banned.get(position, tokens[:0]), tokens]).unique()
        self.returns[position] += 1
        self.state, self.has_returned = self.saved[position], True
        for later in [length for length in self.saved if length >= position]:
            del self.saved[later]
        return True

    def choose(self, beams: Beams, parents: Tensor) -> None:
        """Advance to the new beams; columns and histories follow their parents."""
        self.state = RetrospectionState(beams, self.state.columns[parents], self.state.history[parents])
