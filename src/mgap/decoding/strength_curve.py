"""Token probabilities as a function of a method's strength, at one position of an answer, from stored states.

The states are the method's own effective states (`Method.effective_states`), passed through the plain head. The curve leaves
out that some methods drop unlikely tokens afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mgap.backbones.checked_generate import PLAIN, likeliest
from mgap.decoding.effective_states import StepStates


@dataclass(frozen=True)
class StrengthCurve:
    """The curve of one method."""

    strengths: tuple[float, ...]
    probabilities: dict[int, tuple[float, ...]]  # by token, 0..1
    own: float  # the strength it decoded with


def curve(states: StepStates, tokens: Sequence[int], strengths: Sequence[float]) -> StrengthCurve:
    """The curve for one row; refuses a method that decodes from no single state."""
    if states.method is not None:
        states.method.require_state()
    head = states.head
    with torch.no_grad():
        effective = torch.cat([states.at(strength) for strength in strengths])  # [n, d]
        logits = head.post(head.product(effective))  # [n, vocab]
        likeliest(logits, PLAIN if states.method is None else states.method.name)  # raises if there are none to draw
        probabilities = logits.softmax(-1)
    own = 0.0 if states.method is None else states.method.own_strength(states.inputs)
    return StrengthCurve(
        strengths=tuple(strengths),
        probabilities={token: tuple(probabilities[:, token].tolist()) for token in tokens},
        own=float(torch.as_tensor(own).reshape(-1)[0]),
    )
