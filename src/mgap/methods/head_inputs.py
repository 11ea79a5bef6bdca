"""What the head read when a token was chosen, and the single state that a weighted sum of predictions amounts to.

The head is linear, l = W h + b, so sum_i w_i l_i = W (sum_i w_i h_i) + (sum_i w_i) b: the plain head gives these scores for the
state sum_i w_i h_i, if it has no bias or the weights sum to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mgap.backbones.head import Head
from mgap.errors import ModelError, UnsupportedHead

Weight = float | Tensor  # of a prediction: a number, or one per row [B, 1]


@dataclass(frozen=True)
class HeadInputs:
    """What the head read for a batch when one token was chosen, and what the method decided."""

    h: Tensor  # [B, d] of the main rows, float32 or wider
    branches: tuple[Tensor, ...] = ()  # [B, d] of each branch, in the method's order
    early: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> [B, d], as the method passes it to the head
    values: Mapping[str, Tensor] = field(default_factory=dict)  # [B] each: what the method traced at that token

    @property
    def anchor(self) -> Tensor:
        """The early state [B, d] of the layer that the method chose in each row."""
        chosen = self.values["layer"].long().tolist()
        return torch.stack([self.early[layer][row] for row, layer in enumerate(chosen)])


def mix_states(name: str, head: Head, weights: Sequence[Weight], states: Sequence[Tensor]) -> Tensor:
    """sum_i w_i h_i [B, d]; refuses a head that would not give the method's scores for it."""
    if len(weights) != len(states):
        raise ModelError(
            f"{name} weighs {len(weights)} predictions, and the head read {len(states)}: they cannot be told apart"
        )
    if head.cap is not None or not head.linear:
        what = "is not linear" if head.cap is None else f"is capped at {head.cap:g}"
        raise UnsupportedHead(f"the model's head {what}, so {name} decodes from no one state of its input: leave {name} out")
    if head.bias is not None and float(torch.as_tensor(sum(weights) - 1).abs().max()) > 1e-6:
        raise UnsupportedHead(
            f"{name} weighs the head's bias otherwise than the plain model here, so no one state of the head's input makes its "
            f"scores: leave {name} out, or measure it in a form whose weights sum to 1"
        )
    mixed: Tensor = sum(weight * state for weight, state in zip(weights, states, strict=True))  # type: ignore[assignment]
    return mixed
