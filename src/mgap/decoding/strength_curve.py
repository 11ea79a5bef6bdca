"""How likely tokens become as a method's strength grows, at one token of an answer, from states in hand.

The states are those that the method itself says it decodes from (`Method.effective_states`), put to the plain head; that some
methods drop unlikely tokens afterwards is not in it, nor is the rounding of logits to the model's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mgap.decoding.effective_states import StepStates


@dataclass(frozen=True)
class StrengthCurve:
    """One method's."""

    strengths: tuple[float, ...]
    probabilities: dict[int, tuple[float, ...]]  # by token, 0..1
    own: float  # the strength that it decoded with


def curve(states: StepStates, tokens: Sequence[int], strengths: Sequence[float]) -> StrengthCurve:
    """Of one row; refuses a method that decodes from no one state."""
    if states.method is not None:
        states.method.require_state()
    head = states.head
    with torch.no_grad():
        moved = torch.cat([states.at(strength) for strength in strengths])  # [n, d]
        likely = head.post(head.product_wide(moved)).softmax(-1)  # [n, vocab]
    own = 0.0 if states.method is None else states.method.own_strength(states.inputs)
    return StrengthCurve(
        strengths=tuple(strengths),
        probabilities={token: tuple(likely[:, token].tolist()) for token in tokens},
        own=float(torch.as_tensor(own).reshape(-1)[0]),
    )
