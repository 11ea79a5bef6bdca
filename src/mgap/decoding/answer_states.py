"""The states that whole answers are decoded from, step by step: the method decodes, greedily and in batches, as it always does.

At every token what the head read is kept, and with it the state that the method made of it at the strength it used there: its
setting, or what it found for this token. Another strength gives other tokens, so it is another decoding: `with_strength`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.shared_vision import shared_pictures
from mgap.decoding.effective_states import StepStates, watch
from mgap.decoding.generate import end_ids, generate, until_end
from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.base import Method
from mgap.types import Decoding, Mode


@dataclass(frozen=True)
class AnswerStates:
    """One answer, step by step; nothing of what comes after its end."""

    tokens: tuple[int, ...]  # T of them, the end token too
    is_ended: bool  # by an end token; otherwise by the longest length
    h: Tensor  # [T, d]: what the head read of the main row, in its `wide`
    used: Tensor  # [T, d]: what was decoded from
    strength: Tensor  # [T]: the method's own at each token


Read = Callable[[dict[str, Tensor]], list[AnswerStates]]


@contextmanager
def answer_states(
    model: Backbone | HasBackbone,
    method: Method | None,
    decoding: Decoding = Decoding(),  # noqa: B008  immutable
) -> Iterator[Read]:
    """Inside the block the method is on (None: plain decoding), and what is given decodes encoded rows, an answer for each.

    Refuses a method that decodes from no state, and any decoding but greedy. Memory: the states of every row, token and branch.
    """
    backbone = Backbone.of(model)
    if beyond := decoding.modes() - {Mode.GREEDY}:
        refused = ", ".join(sorted(mode.value for mode in beyond))
        raise UnsupportedDecoding(f"states along answers are those of greedy decoding, not of {refused}: leave it out")
    end = end_ids(backbone)
    with watch(backbone, method) as taken:

        def read(inputs: dict[str, Tensor]) -> list[AnswerStates]:
            taken()  # of a call that failed
            with shared_pictures(backbone):
                made = generate(backbone, inputs, decoding)
            steps = taken()
            if len(steps) != made.tokens.shape[1]:
                raise ModelError(
                    f"the head read {len(steps)} states for {made.tokens.shape[1]} tokens: they cannot be told apart"
                )
            h = torch.stack([step.h for step in steps], dim=1)  # [B, T, d]
            used = h if method is None else torch.stack([step.at() for step in steps], dim=1)
            strength = torch.stack([_strength(step) for step in steps], dim=1)  # [B, T]
            answers = []
            for row, said in enumerate(made.tokens.tolist()):
                tokens = tuple(until_end(said, end))
                parts = (part[row, : len(tokens)] for part in (h, used, strength))
                answers.append(AnswerStates(tokens, tokens[-1] in end, *parts))
            return answers

        yield read


def _strength(step: StepStates) -> Tensor:
    """The method's own at one token, [B]."""
    own = 0.0 if step.method is None else step.method.own_strength(step.inputs)
    return torch.as_tensor(own).to(step.h).reshape(-1).expand(len(step.h))
