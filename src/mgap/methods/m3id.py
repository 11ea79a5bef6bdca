"""M3ID, multi-modal mutual-information decoding (Favero et al., CVPR 2024): a contrast with a text-only branch that grows.

    s = c + (exp(lam t) - 1) (c - u),   c = log softmax(l),   u = log softmax(l_text),   t = 1 at the first new token

The authors published no code. `constraint="plausibility"` is the common implementation (AvisC): lam 0.02, and tokens below beta
times the most likely one are dropped. `"confidence_gate"` is the paper's: the contrast acts only where the most likely token is
below tau. Cost: 2 forwards per token; the branch's prompt is short. The weight grows without bound, 1.7 at t = 50 and 54 at
t = 200: `most` caps it. A one-word answer is almost plain decoding: the first weight is 0.02. As in AvisC, the branch loses the
picture's placeholders and markers and keeps the text around them, such as a newline, which "no_image" elsewhere drops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.errors import PromptError, SettingError
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.branch import BranchMethod, plausible
from mgap.methods.kinds.paired_forward import Inputs
from mgap.settings import check_choice, check_share, check_strength

CONSTRAINTS = ("plausibility", "confidence_gate", "none")


def sharpen(main: Tensor, branch: Tensor, weight: float) -> Tensor:
    """c + weight (c - u) of logits [..., vocab]."""
    c, u = main.log_softmax(-1), branch.log_softmax(-1)
    return c + weight * (c - u)


def is_unsure(main: Tensor, tau: float) -> Tensor:
    """Whether the most likely token of logits [..., vocab] has probability below tau; [...]."""
    return main.log_softmax(-1).max(-1).values < math.log(tau)


def gate_by_confidence(scores: Tensor, main: Tensor, tau: float) -> Tensor:
    """The scores where the most likely token is below tau; the plain log-probabilities elsewhere."""
    return torch.where(is_unsure(main, tau).unsqueeze(-1), scores, main.log_softmax(-1))


@dataclass(frozen=True)
class M3ID(BranchMethod):
    """Multi-modal mutual-information decoding."""

    name: ClassVar[str] = "m3id"
    summary: ClassVar[str] = "contrast with a text-only branch, more and more along the answer"
    moved_by: ClassVar[str] = "weight"  # exp(lam t) - 1
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"lam": 0.0})

    lam: float = 0.02
    beta: float = 0.1
    constraint: str = "plausibility"
    tau: float = 0.9  # of the confidence gate; the paper's value is not known to us
    most: float = math.inf  # of the weight

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength("lam", self.lam)
        check_share("beta", self.beta)
        check_choice("constraint", self.constraint, CONSTRAINTS)
        if not check_share("tau", self.tau) > 0:
            raise SettingError(f"tau={self.tau} must be above 0 and at most 1")
        if isinstance(self.most, bool) or not isinstance(self.most, int | float) or not self.most >= 0:
            raise SettingError(f"most={self.most!r:.40} must be a number that is not negative")

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        if backbone.pixel_keys[0] not in main:
            raise PromptError(f"{self.name} takes the picture away in its branch: give one, or leave {self.name} off")
        return backbone.without_image(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        scores = sharpen(main, branch, self._weight(step))
        if self.constraint == "plausibility":
            scores = plausible(scores, main, self.beta)
        elif self.constraint == "confidence_gate":
            scores = gate_by_confidence(scores, main, self.tau)
        return scores, {}

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:
        values = {"weight": torch.full_like(main[:, 0], self._weight(step))}
        if self.constraint == "confidence_gate":
            values["open"] = is_unsure(main, self.tau).to(main.dtype)
        return {**values, **super().traced(main, branches, step)}

    def _weight(self, step: int) -> float:
        return min(math.expm1(min(self.lam * step, 700.0)), self.most)  # expm1 raises beyond 709

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:
        """Plain weights where the confidence gate is closed."""
        return super().mixture(strength * inputs.values["open"].unsqueeze(-1) if "open" in inputs.values else strength, inputs)
