"""MGAP at other settings from states in hand, without the model.

A method that acts at the head changes no hidden state: what the head reads after some tokens of an answer is the same whatever
the setting. So an answer can be followed at any setting as far as its tokens are ones that were seen before, and the first of
them always is. Where it goes elsewhere the model has to be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.head import Head
from mgap.decoding.effective_states import StepStates
from mgap.decoding.step_by_step import MadeToken, Spelling
from mgap.decoding.trace import Recorder, StepRows
from mgap.methods.base import Seam, Tap
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.mgap import MGAP, Correction

PLAIN = frozenset({Seam.HEAD, Seam.BRANCH})  # methods whose main rows have the states of the plain model


class Replay(NamedTuple):
    """An answer as far as it can be told without the model."""

    tokens: tuple[MadeToken, ...]
    is_whole: bool  # nothing is missing: it ended, or is as long as it may be


class Paths:
    """The plain states after every beginning of an answer to one question that was seen so far."""

    def __init__(self, model: Backbone | HasBackbone) -> None:
        self.backbone = Backbone.of(model)
        self._states: dict[tuple[int, ...], Tensor] = {}  # tokens so far -> [d]
        self._head: Head | None = None

    def __len__(self) -> int:
        return len(self._states)

    def add(self, tokens: Iterable[MadeToken]) -> None:
        """An answer's; those of a method that changes hidden states are no plain ones, and are passed over."""
        so_far: tuple[int, ...] = ()
        for token in tokens:
            method = token.states.method
            if method is not None and method.seam not in PLAIN:
                return
            self._head = token.states.head
            self._states.setdefault(so_far, token.states.h[0])
            so_far += (token.step.token_id,)

    def replay(self, method: MGAP, *, max_new_tokens: int, top: int = 5) -> Replay:
        """The greedy answer under these settings, up to the first token after which nothing is known."""
        if self._head is None:
            return Replay((), is_whole=False)
        read = dict(self._states)  # as they are now: another thread may add some
        known = dict(zip(read, _corrected(self._head, list(read.values()), method, top), strict=True))
        spell, found = Spelling(self.backbone), list[MadeToken]()
        so_far: tuple[int, ...] = ()
        while so_far in known and len(found) < max_new_tokens:
            token, states = known[so_far]
            found.append(spell(token, states))
            if found[-1].is_end:
                return Replay(tuple(found), is_whole=True)
            so_far += (token,)
        return Replay(tuple(found), is_whole=len(found) >= max_new_tokens)


def _corrected(head: Head, states: Sequence[Tensor], method: MGAP, top: int) -> list[tuple[int, StepStates]]:
    """What each state [d] leads to, and what decoding would have traced: one product with the head for all of them.

    The likeliest token is that of the logits in the model's dtype, where two may be equal: the first one, as in decoding.
    """
    tap, recorder = Tap(), Recorder(top)
    tap.listener = recorder
    h = torch.stack(list(states)).to(head.device, head.wide).unsqueeze(1)  # [n, 1, d]
    with torch.no_grad():
        logits = head.post(Correction(method.subspace.basis, head, method.settings, tap).step(h, head.product(h)))
    (rows,) = recorder.steps
    chosen = logits[:, 0].float().argmax(-1).tolist()
    return [(token, StepStates(method, head, HeadInputs(h[n]), _row(rows, n))) for n, token in enumerate(chosen)]


def _row(rows: StepRows, number: int) -> StepRows:
    one = slice(number, number + 1)
    values = {name: value[one] for name, value in rows.values.items()}
    return StepRows(values, (rows.before[0][one], rows.before[1][one]), (rows.after[0][one], rows.after[1][one]), None)
