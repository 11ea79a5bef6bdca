"""Beam search of one sample as in transformers, with immutable states: to go back, return to an old state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

OUT = -1e9  # transformers' score of a hypothesis that must not continue


@dataclass(frozen=True)
class BeamRules:
    """The search settings of a generation's configuration."""

    beams: int
    picks: int  # continuations considered per step: enough that some continue where others end
    length_penalty: float
    early_stopping: bool | str
    longest: int  # maximum number of new tokens
    ends: Callable[[Tensor], Tensor]  # new tokens [n, k] -> whether each sequence ends there, bool [n]


@dataclass(frozen=True)
class Hypothesis:
    """A finished answer."""

    score: float
    tokens: Tensor  # [k]
    rows: Tensor  # [k]: the beam that each token was chosen from


@dataclass(frozen=True)
class Beams:
    """The running and the finished hypotheses of a sample."""

    tokens: Tensor  # [beams, k]
    rows: Tensor  # [beams, k]
    scores: Tensor  # [beams], best first
    done: tuple[Hypothesis, ...] = ()  # best first, at most as many as beams
    is_over: bool = False

    @classmethod
    def start(cls, beams: int, device: torch.device) -> Beams:
        """One empty hypothesis; the others are copies that no first token is chosen from."""
        empty = torch.zeros(beams, 0, dtype=torch.long, device=device)
        scores = torch.full((beams,), OUT, device=device)
        scores[0] = 0.0
        return cls(empty, empty, scores)

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @property
    def live(self) -> Tensor:
        """Which hypotheses are real, not copies or ended ones: bool [beams]."""
        return self.scores > OUT / 10

    def advance(self, logp: Tensor, rules: BeamRules) -> tuple[Beams, Tensor]:
        """Choose the next tokens by log-probabilities [beams, vocab]; returns the new state and each beam's parent [beams]."""
        best = (self.scores.unsqueeze(1) + logp).flatten().topk(rules.picks)
        parents, chosen = best.indices // logp.shape[1], best.indices % logp.shape[1]
        tokens = torch.cat([self.tokens[parents], chosen.unsqueeze(1)], dim=1)  # [picks, k + 1]
        rows = torch.cat([self.rows[parents], parents.unsqueeze(1)], dim=1)
        ends = rules.ends(tokens)
        scores = best.values + ends.float() * OUT
        top = scores.topk(rules.beams).indices
        running = replace(self, tokens=tokens[top], rows=rows[top], scores=scores[top])
        final = best.values / tokens.shape[1] ** rules.length_penalty
        may_finish = zip(ends[: rules.beams].tolist(), final.tolist(), tokens, rows, strict=False)  # only the first `beams`
        finished = [Hypothesis(score, *parts) for has_ended, score, *parts in may_finish if has_ended]
        running = replace(running, done=tuple(sorted((*self.done, *finished), key=lambda one: -one.score)[: rules.beams]))
        return replace(running, is_over=bool(ends.all()) or running._cannot_improve(rules)), parents[top]

    def _cannot_improve(self, rules: BeamRules) -> bool:
        """Whether there are as many answers as beams, and none that runs can beat the worst; or early stopping takes them."""
        is_full = len(self.done) == rules.beams
        if is_full and rules.early_stopping is True:
            return True
        worst = self.done[-1].score if is_full else OUT
        is_patient = rules.early_stopping == "never" and rules.length_penalty > 0
        length = rules.longest if is_patient else self.length
        return not float(self.scores[0]) / length**rules.length_penalty > worst
