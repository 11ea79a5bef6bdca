"""What is shown of answers: one column a method, a token at a time, with everything that was measured of it."""

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
OPEN = "open"  # told as far as states in hand go; the model has to go on


class MeasuredToken(NamedTuple):
    """A token and its numbers."""

    token: MadeToken
    entropy: float  # nats, of the prediction that the plain head makes of the state it read
    cosine: float  # share of that state that lies in the prior
    beta: float | None  # how much of that share was taken away; None: the method is another
    before: Place | None  # of that state; None: there is no bank
    after: Place | None  # of the state that was decoded from; None: there is no bank, or no such state


@dataclass(frozen=True)
class Column:
    """One method's answer so far."""

    name: str  # of the registry, or vanilla
    method: Method  # plain decoding is MGAP at strength 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that were given
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
class AskedColumns:
    """One question about one picture, and the answers so far. A value: what changes is another one."""

    loaded: Loaded
    prior: Subspace
    picture: Image.Image
    source: Scene | str  # what was drawn, or the name of the file that was dropped
    question: str
    max_new_tokens: int
    paths: Paths  # shared by all that come of the same question
    columns: tuple[Column, ...] = ()
    prior_folder: str = ""  # where the prior lies; "": it was fitted here
    told: Mapping[str, str] = field(default_factory=dict)  # by method, what a run's records have

    def with_column(self, place: int, column: Column) -> AskedColumns:
        columns = list(self.columns)
        columns[place] = column
        return replace(self, columns=tuple(columns))

    def alike(self, place: int, at: int) -> list[int]:
        """The columns whose answers begin with the same tokens up to the one at `at`: there their states can be compared."""
        begun = self.columns[place].ids[:at]
        return [n for n, column in enumerate(self.columns) if len(column.ids) > at and column.ids[:at] == begun]


def measure(loaded: Loaded, prior: Subspace, tokens: Sequence[MadeToken]) -> tuple[MeasuredToken, ...]:
    """The numbers of tokens of one answer, all at once."""
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
    """Why a method's states have no place among others; empty: they have one."""
    try:
        method.require_state()
    except MgapError as error:
        return str(error)
    return ""
