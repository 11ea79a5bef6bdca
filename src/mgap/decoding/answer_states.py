"""The states that whole answers are decoded from, token by token, under ordinary greedy decoding in batches.

For every token we keep what the head read and the state that the method made of it, at the strength it used there: its setting,
or what it computed for this token. Another strength gives other tokens, so it needs another decoding: see `with_strength`.
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
    """One answer, token by token, without the padding after its end."""

    tokens: tuple[int, ...]  # T of them, including the end token
    is_ended: bool  # by an end token; otherwise it reached the maximum length
    h: Tensor  # [T, d]: what the head read for the main row, in `head.wide`
    used: Tensor  # [T, d]: the state that was decoded from
    strength: Tensor  # [T]: the method's own strength at each token


ReadAnswers = Callable[[dict[str, Tensor]], list[AnswerStates]]


@contextmanager
def answer_states(
    model: Backbone | HasBackbone,
    method: Method | None,
    decoding: Decoding = Decoding(),  # noqa: B008  immutable
) -> Iterator[ReadAnswers]:
    """Attach the method (None: plain decoding) and yield a function that decodes encoded rows, one answer per row.

    Refuses a method that decodes from no single state, and any decoding but greedy. Memory: the states of every row, token and
    branch.
    """
    backbone = Backbone.of(model)
    if other_modes := decoding.modes() - {Mode.GREEDY}:
        refused = ", ".join(sorted(mode.value for mode in other_modes))
        raise UnsupportedDecoding(f"states along answers are those of greedy decoding, not of {refused}: leave it out")
    end = end_ids(backbone)
    with watch(backbone, method) as take_steps:

        def read(inputs: dict[str, Tensor]) -> list[AnswerStates]:
            take_steps()  # drop what a failed call left behind
            with shared_pictures(backbone):
                generated = generate(backbone, inputs, decoding)
            steps = take_steps()
            if len(steps) != generated.tokens.shape[1]:
                raise ModelError(
                    f"the head read {len(steps)} states for {generated.tokens.shape[1]} tokens: they cannot be told apart"
                )
            h = torch.stack([step.h for step in steps], dim=1)  # [B, T, d]
            used = h if method is None else torch.stack([step.at() for step in steps], dim=1)
            strength = torch.stack([_strength(step) for step in steps], dim=1)  # [B, T]
            answers = []
            for row, ids in enumerate(generated.tokens.tolist()):
                tokens = tuple(until_end(ids, end))
                parts = (part[row, : len(tokens)] for part in (h, used, strength))
                answers.append(AnswerStates(tokens, tokens[-1] in end, *parts))
            return answers

        yield read


def _strength(step: StepStates) -> Tensor:
    """The method's own strength at one token, [B]."""
    own = 0.0 if step.method is None else step.method.own_strength(step.inputs)
    return torch.as_tensor(own).to(step.h).reshape(-1).expand(len(step.h))
