"""Answers side by side: one column per method, token by token, with the measurements of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from PIL import Image

from mgap.decoding.replay import Paths
from mgap.decoding.step_by_step import MadeToken
from mgap.diagnosis.landscape import Place
from mgap.errors import MgapError
from mgap.inspector.model_shelf import Loaded
from mgap.methods.base import Method
from mgap.methods.mgap import MGAP
from mgap.pocket.scenes import Scene
from mgap.priors.subspace import Subspace

WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"
OPEN = "open"  # replayed as far as stored states go; the model must continue


class MeasuredToken(NamedTuple):
    """A token and its measurements."""

    token: MadeToken
    entropy: float  # nats, of what the plain head predicts from the state it reads
    cosine: float  # share of that state inside the prior
    beta: float | None  # how much of that share is removed; None: the method is not MGAP
    before: Place | None  # of that state; None: no bank
    after: Place | None  # of the state decoded from; None: no bank, or no such state

    def has_departed(self, tau: float) -> bool:
        """Whether the method took the state out of reach of normal decoding's, as far as the two decimals of d / tau tell.

        A state of plain decoding that lies beyond tau by itself has not departed, if the method left it where it was.
        """
        if self.before is None or self.after is None or not self.after.is_departed:
            return False
        return not self.before.is_departed or round(self.after.distance / tau, 2) > round(self.before.distance / tau, 2)


@dataclass(frozen=True)
class Column:
    """One method's answer so far."""

    name: str  # in the registry, or vanilla
    method: Method  # plain decoding is MGAP at strength 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # those given explicitly
    tokens: tuple[MeasuredToken, ...] = ()
    state: str = WAITING
    note: str = ""  # what it waits for, or why it failed

    @property
    def text(self) -> str:
        return "".join(m.token.text for m in self.tokens).strip()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(m.token.step.token_id for m in self.tokens)


@dataclass(frozen=True)
class Comparison:
    """One question about one picture, and the answers so far. Immutable: every change makes a new one."""

    loaded: Loaded
    prior: Subspace
    picture: Image.Image
    source: Scene | str  # the drawn scene, or the name of the dropped file
    question: str
    max_new_tokens: int
    paths: Paths  # shared by all comparisons of the same question
    columns: tuple[Column, ...] = ()
    prior_folder: str = ""  # of the prior; "": it was fitted here
    recorded: Mapping[str, str] = field(default_factory=dict)  # a run's answers by method

    def with_column(self, place: int, column: Column) -> Comparison:
        columns = list(self.columns)
        columns[place] = column
        return replace(self, columns=tuple(columns))

    def columns_with_prefix(self, place: int, at: int) -> list[int]:
        """Columns whose answers have the same tokens before the one at `at`, so that their states there are comparable."""
        prefix = self.columns[place].ids[:at]
        return [n for n, column in enumerate(self.columns) if len(column.ids) > at and column.ids[:at] == prefix]


def measure(loaded: Loaded, prior: Subspace, tokens: Sequence[MadeToken]) -> tuple[MeasuredToken, ...]:
    """Measure the tokens of one answer in one batch."""
    if not tokens:
        return ()
    first = tokens[0].states
    method = first.method
    ours = method if isinstance(method, MGAP) else MGAP(prior, alpha=0.0, rank=min(5, prior.rank))
    h = torch.cat([token.states.h for token in tokens])  # [T, d]
    gate = ours.read(first.head, h)
    betas: Sequence[float | None] = gate.beta.tolist() if method is ours else [None] * len(tokens)
    before: Sequence[Place | None] = [None] * len(tokens)
    after = before
    if loaded.landscape is not None:
        before = loaded.landscape.place(h)
        if method is None or not why_no_state(method):
            after = loaded.landscape.place(torch.cat([token.states.at() for token in tokens]))
    rows = zip(tokens, gate.entropy.tolist(), gate.cosine.tolist(), betas, before, after, strict=True)
    return tuple(MeasuredToken(*row) for row in rows)


def why_no_state(method: Method) -> str:
    """Why a method has no state to compare with others; empty if it has one."""
    try:
        method.require_state()
    except MgapError as error:
        return str(error)
    return ""
