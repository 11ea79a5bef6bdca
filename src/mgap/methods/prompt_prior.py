"""Prompt prior: remove from the state what this prompt alone, without the picture, puts into the prior's subspace.

    h' = h - s V V'(h_blind - m),   s = rho * gamma * delta

V and m are the subspace and the mean of a fitted prior (`centre` off: m = 0), h_blind is the head's input for the same prompt
and answer so far with a null image. gamma = tanh(lam * H) with `gate` and delta = 1 - cos(h, V V'h) with `protect` are MGAP's,
else 1. MGAP itself removes what lies in the subspace, wherever it comes from. With V = I and m = h this would be the blind
contrast. The part of h outside the subspace does not change. One [K, vocab] table gives the logits, as in mgap.py. Cost: see
kinds/blind_branch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.base import Need, Removable, Tap
from mgap.methods.head_inputs import Weight
from mgap.methods.kinds.blind_branch import BlindMethod, Move
from mgap.methods.mgap import Settings, gate_of
from mgap.priors.subspace import Subspace
from mgap.settings import check_count, check_strength, check_switch


class Projected:
    """The formula above, bound to one head."""

    def __init__(self, prior: Subspace, head: Head, method: PromptPrior) -> None:
        self.head, self.rho = head, method.rho
        self.settings = Settings(1.0, method.lam, gate=method.gate, protect=method.protect)
        self.basis, mean = (part.to(head.device, head.wide) for part in (prior.basis, prior.mean))  # [d, K], [d]
        self.mean = mean if method.centre else torch.zeros_like(mean)
        self.table = head.table(self.basis) if head.linear and head.cap is None else None  # [K, vocab]

    def strength(self, h: Tensor, entropy: Tensor, rho: Weight) -> Tensor:
        """s [B, 1]."""
        gate = gate_of(torch.linalg.vector_norm(h, dim=-1), h @ self.basis, entropy.to(h), self.settings)
        return gate.beta.unsqueeze(-1) * rho

    def prior(self, blind: Tensor) -> Tensor:
        """V'(h_blind - m) [B, K]."""
        return (blind - self.mean) @ self.basis

    def states(self, h: Tensor, blind: Tensor, entropy: Tensor, strength: Weight, *, is_first: bool) -> Tensor:  # noqa: ARG002
        return h - self.strength(h, entropy, strength) * (self.prior(blind) @ self.basis.T)

    def logits(self, h: Tensor, blind: Tensor, entropy: Tensor, *, is_first: bool) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        s, c = self.strength(h, entropy, self.rho), self.prior(blind)
        values = {"strength": s.squeeze(-1), "size": torch.linalg.vector_norm(c, dim=-1)}
        if self.table is not None:
            return self.head.post(-s * c @ self.table), values
        moved, plain = (self.head.post(self.head.product(x)) for x in (h - s * (c @ self.basis.T), h))
        return moved - plain, values


@dataclass(frozen=True)
class PromptPrior(BlindMethod):
    """The projected prompt prior. `rank` uses only the first directions of the prior."""

    name: ClassVar[str] = "prompt-prior"
    summary: ClassVar[str] = "take what the prompt alone puts into the prior's subspace out of the head's input"
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({"prior": Need("subspace")})
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"rho": 0.0})

    prior: Subspace = field(kw_only=True)
    rank: int | None = None
    gate: bool = False
    protect: bool = False
    centre: bool = True
    lam: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, Subspace):
            raise SettingError(f"prior must be a Subspace, not {type(self.prior).__name__}: use mgap.Subspace.load(...)")
        self.subspace  # noqa: B018  refuses a rank that the prior does not have

    def check_settings(self) -> None:
        super().check_settings()
        for name in ("gate", "protect", "centre"):
            check_switch(name, getattr(self, name))
        check_strength("lam", self.lam)
        if self.rank is not None:
            check_count("rank", self.rank, least=1)

    @property
    def subspace(self) -> Subspace:
        return self.prior if self.rank is None else self.prior.truncate(self.rank)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        self.prior.require(backbone)
        return super().attach(backbone, tap)

    def bind(self, head: Head) -> Move:
        return Projected(self.subspace, head, self)
