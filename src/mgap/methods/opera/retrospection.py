"""OPERA's bookkeeping for one sample: the penalty on its candidates, where attention collapses, and when to go back.

A step chooses one token a beam. Each keeps the state that it began with; if every beam has collapsed onto one word more than r
times, the search returns to the state after that word and chooses otherwise there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mgap.methods.opera.beams import Beams
from mgap.methods.opera.overtrust import EARLY, collapse, lengthen, most_common, penalise, penalty

FALL = 999.0  # what is no candidate falls so far


class Strength(NamedTuple):
    """The method's numbers."""

    alpha: float
    sigma: float
    candidates: int  # N_can: also how often the search may return to one position
    r: int
    window: int  # states kept


class Outlook(NamedTuple):
    """Candidates' weights on the answer so far and themselves, and on the picture."""

    words: Tensor  # [beams, N, n]
    image: Tensor  # [beams, N]


@dataclass(frozen=True)
class RetrospectionState:
    """What a step begins with, before the model has read the newest token."""

    beams: Beams
    columns: Tensor  # [beams, k - 1] sums of ln(sigma w) below the words, up to the row of the last but one
    history: Tensor  # [beams, k] where each earlier step collapsed; follows the beams


class CandidateWeights(NamedTuple):
    """One step's numbers, one a beam and each [beams], and its scores [beams, vocab]."""

    scores: Tensor
    penalty: Tensor  # of the candidate that is ahead
    image: Tensor
    column: Tensor


class Retrospection:
    """One sample's search, as far as OPERA has a say in it."""

    def __init__(self, strength: Strength, beams: Beams) -> None:
        self.strength = strength
        nothing = beams.tokens.new_zeros(len(beams.tokens), 0)
        self.state = RetrospectionState(beams, nothing.float(), nothing)
        self.kept: OrderedDict[int, RetrospectionState] = OrderedDict()  # by the number of tokens
        self.returns: Counter[int] = Counter()  # how often the search has come back to a position
        self.banned: dict[int, Tensor] = {}  # tokens that were chosen there before
        self.has_returned = False  # the step at hand is one that was done before

    @property
    def beams(self) -> Beams:
        return self.state.beams

    def read(self, newest: Tensor | None) -> None:
        """A step begins: keep its state, and take in the newest token's weights on the answer [beams, k]."""
        self.kept[self.beams.length] = self.state
        while len(self.kept) > self.strength.window:
            self.kept.popitem(last=False)
        if newest is not None:
            self.state = replace(self.state, columns=lengthen(self.state.columns, newest, self.strength.sigma))

    def weigh(self, logits: Tensor, candidates: Tensor, ahead: Outlook) -> CandidateWeights:
        """Scores of logits [beams, vocab] given what the candidates [beams, N] look at, and where that collapses."""
        columns = self.state.columns.unsqueeze(1).expand(-1, candidates.shape[1], -1)
        phi, places = collapse(lengthen(columns, ahead.words, self.strength.sigma))  # [beams, N]
        column = most_common(places)
        self.state = replace(self.state, history=torch.cat([self.state.history, column.unsqueeze(1)], dim=1))
        rho = penalty(phi, ahead.image, self.beams.length + 1)
        chosen = logits.gather(1, candidates)
        # among candidates only differences matter: the smallest is taken off, so that a huge phi leaves the others their logits
        adjusted = penalise(chosen, rho - rho.amin(1, keepdim=True), self.strength.alpha)
        first = adjusted.argmax(1, keepdim=True)
        scores = (logits - FALL).scatter(1, candidates, adjusted)
        if self.has_returned:
            scores = self._without_banned(logits)
        return CandidateWeights(scores, rho.gather(1, first)[:, 0], ahead.image.gather(1, first)[:, 0], column)

    def _without_banned(self, logits: Tensor) -> Tensor:
        """A step done again: plain logits, with what was chosen here before as low as the lowest."""
        lowest = logits.min(1, keepdim=True).values
        banned = self.banned[self.beams.length]
        return logits.scatter(1, banned.expand(len(logits), -1), lowest.expand(-1, len(banned)))

    def goes_back(self) -> bool:
        """Return to an earlier state, if every beam keeps collapsing onto one word and the place is not used up."""
        if self.has_returned:
            self.has_returned = False  # chosen anew here; nothing was read since
            return False
        live = self.state.history[self.beams.live]  # [live, k + 1]
        common = most_common(live[:, -1])
        word, fewest = int(common), int((live == common).sum(1).min())
        if word < EARLY or fewest <= self.strength.r:
            return False
        for place in (word + 1, word):
            if self.returns[place] < self.strength.candidates:
                return self._return_to(place)
        return False

    def _return_to(self, place: int) -> bool:
        if place >= self.beams.length or place not in self.kept:  # nothing was chosen there yet, or it is too long ago
            return False
        said = self.beams.tokens[self.beams.live, place]
        self.banned[place] = torch.cat([self.banned.get(place, said[:0]), said]).unique()
        self.returns[place] += 1
        self.state, self.has_returned = self.kept[place], True
        for later in [length for length in self.kept if length >= place]:
            del self.kept[later]
        return True

    def choose(self, beams: Beams, parents: Tensor) -> None:
        """The beams have moved on: their columns and histories with them."""
        self.state = RetrospectionState(beams, self.state.columns[parents], self.state.history[parents])
