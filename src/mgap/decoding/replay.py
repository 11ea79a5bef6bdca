"""Replay an answer under other MGAP settings from stored states, without running the model.

A method that acts at the head changes no hidden state, so what the head reads after given tokens does not depend on the
settings. An answer can be replayed at any settings as long as its tokens so far have occurred before; the first token always
can. Where the answer takes a new path, the model has to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.checked_generate import likeliest
from mgap.backbones.head import Head
from mgap.decoding.effective_states import StepStates
from mgap.decoding.step_by_step import MadeToken, Spelling
from mgap.decoding.trace import Recorder, StepRows
from mgap.methods.base import Seam, Tap
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.mgap import MGAP, Correction

PLAIN_STATES = frozenset({Seam.HEAD, Seam.BRANCH})  # methods that leave the main rows' states as in the plain model


class Replay(NamedTuple):
    """An answer as far as it is known without running the model."""

    tokens: tuple[MadeToken, ...]
    is_whole: bool  # it ended, or reached the maximum length


class Paths:
    """The plain states after every answer prefix that has occurred for one question."""

    def __init__(self, model: Backbone | HasBackbone) -> None:
        self.backbone = Backbone.of(model)
        self._states: dict[tuple[int, ...], Tensor] = {}  # answer prefix -> [d]
        self._head: Head | None = None

    def __len__(self) -> int:
        return len(self._states)

    def add(self, tokens: Iterable[MadeToken]) -> None:
        """Add the states of an answer; skips answers of methods that change hidden states."""
        prefix: tuple[int, ...] = ()
        for token in tokens:
            method = token.states.method
            if method is not None and method.seam not in PLAIN_STATES:
                return
            self._head = token.states.head
            self._states.setdefault(prefix, token.states.h[0])
            prefix += (token.step.token_id,)

    def replay(self, method: MGAP, *, max_new_tokens: int, top: int = 5) -> Replay:
        """The greedy answer under these settings, up to the first prefix without a stored state."""
        if self._head is None:
            return Replay((), is_whole=False)
        stored = dict(self._states)  # a copy: another thread may add some
        next_tokens = dict(zip(stored, _corrected(self._head, list(stored.values()), method, top), strict=True))
        spell, made = Spelling(self.backbone), list[MadeToken]()
        prefix: tuple[int, ...] = ()
        while prefix in next_tokens and len(made) < max_new_tokens:
            token, states = next_tokens[prefix]
            made.append(spell(token, states))
            if made[-1].is_end:
                return Replay(tuple(made), is_whole=True)
            prefix += (token,)
        return Replay(tuple(made), is_whole=len(made) >= max_new_tokens)


def _corrected(head: Head, states: Sequence[Tensor], method: MGAP, top: int) -> list[tuple[int, StepStates]]:
    """The next token after each state [d], and what decoding would have traced; one head product for all states."""
    tap, recorder = Tap(), Recorder(top)
    tap.listener = recorder
    h = torch.stack(list(states)).to(head.device, head.wide).unsqueeze(1)  # [n, 1, d]
    product = head.product if method.exact and not method.is_zero else head.own_product  # as in decoding
    with torch.no_grad():
        logits = head.post(Correction(method.subspace.basis, head, method.settings, tap).step(h, product(h)))
    (rows,) = recorder.steps
    chosen = likeliest(logits[:, 0].float(), method.name).tolist()
    return [(token, StepStates(method, head, HeadInputs(h[n]), _row(rows, n))) for n, token in enumerate(chosen)]


def _row(rows: StepRows, number: int) -> StepRows:
    one = slice(number, number + 1)
    values = {name: value[one] for name, value in rows.values.items()}
    return StepRows(values, (rows.before[0][one], rows.before[1][one]), (rows.after[0][one], rows.after[1][one]), None)
