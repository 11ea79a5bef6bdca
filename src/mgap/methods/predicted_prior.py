"""Predicted prompt prior: remove from the head's input what the model would expect here without the picture.

    h' = h - s V c_hat,   c_hat = A h + a,   s = rho * gamma * delta

c_hat estimates V'(h_blind - mean), the coordinates in the prior's subspace of the state for the same prompt and answer so far
with a null image. A linear map, fitted once and without labels (priors/prior_map.py), predicts it from h, so no blind branch
runs. gamma = tanh(lam * H) with `gate`, and delta = 1 - cos(h, V V'h) with `protect`, are MGAP's; without them they are 1. MGAP
is the special case A = V', a = 0 with both on: it treats the state's own part in the subspace as the prompt's prior.

The head is linear, so W h' = W h - s (W V) c_hat: one [K, vocab] table, built once. Cost per token: 1 forward and
2 K (2 d + vocab) flops. All decoding modes; any attention kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.methods.base import Need, Observation, Tap, load_if_path
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.head import HeadMethod
from mgap.methods.mgap import Gate, Settings, entropy_of, gate_of, take_away
from mgap.priors.prior_map import PriorMap
from mgap.priors.subspace import Subspace
from mgap.settings import check_strength, check_switch


class Removal:
    """A predicted prior bound to one head. Used as that head's forward hook."""

    fused: ClassVar[None] = None  # no kernels of its own

    def __init__(self, prior_map: PriorMap, head: Head, settings: Settings, tap: Tap) -> None:
        self.basis = prior_map.prior.basis.to(head.device, head.wide)  # V [d, K]
        self.weight = prior_map.weight.to(self.basis)  # A [K, d]
        self.offset = prior_map.offset.to(self.basis)  # a [K]
        self.table = head.table(self.basis) if head.linear else None  # [K, vocab]; None: the exact path
        self.head, self.settings, self.tap = head, settings, tap

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if self.settings.alpha == 0 and self.tap.listener is None:
            return output
        return self.step(args[0], output)

    def step(self, h: Tensor, output: Tensor, alphas: Tensor | None = None, *, may_overwrite: bool = False) -> Tensor:
        """What replaces the head's output [..., vocab] for states [..., d], in float32; as `Correction.step`."""
        listener = self.tap.listener
        h, logits = h.to(self.basis), output.to(self.basis.dtype)
        coeff, gate = self.predict(h), self.gate(h, logits, alphas)
        if may_overwrite and listener is None and self.table is not None:
            return take_away(logits, gate.beta, coeff, self.table)
        corrected = self.correct(h, output, logits, coeff, gate, alphas)
        if listener is not None:
            values = gate._asdict()
            values["strength"] = values.pop("beta")
            values["size"] = torch.linalg.vector_norm(coeff, dim=-1)
            post, wide = self.head.post, self.basis.dtype
            listener(Observation(values, post(logits), post(corrected.to(wide))))
        return corrected

    def predict(self, h: Tensor) -> Tensor:
        """c_hat [..., K] of states [..., d]."""
        return h @ self.weight.T + self.offset

    def gate(self, h: Tensor, logits: Tensor, alphas: Tensor | None = None) -> Gate:
        """The gate, whose beta is s [...]. The entropy is computed only if it is used or traced, else it is 0.

        `alphas` [...], if given, are strengths per row, instead of rho.
        """
        norm = torch.linalg.vector_norm(h, dim=-1)
        is_read = self.settings.gate or self.tap.listener is not None
        entropy = entropy_of(self.head.post(logits)) if is_read else torch.zeros_like(norm)
        return gate_of(norm, h @ self.basis, entropy, self.settings, alphas)

    def correct(
        self, h: Tensor, output: Tensor, logits: Tensor, coeff: Tensor, gate: Gate, alphas: Tensor | None = None
    ) -> Tensor:
        """What replaces the head's output [..., vocab]; `logits` is the same output in float32."""
        if self.settings.alpha == 0 and alphas is None:
            return output  # bit-equal
        if self.table is None:
            return self.head.product(self.move(h, coeff, gate))
        return logits - (gate.beta.unsqueeze(-1) * coeff) @ self.table

    def move(self, h: Tensor, coeff: Tensor, gate: Gate) -> Tensor:
        """h' [..., d] itself; decoding needs only its logits."""
        return h - (gate.beta.unsqueeze(-1) * coeff) @ self.basis.T


@dataclass(frozen=True)
class PredictedPrior(HeadMethod):
    """The prompt's prior without a second branch. `prior_map` may be the folder it was saved to."""

    name: ClassVar[str] = "predicted-prior"
    summary: ClassVar[str] = "take the prompt's own prior, predicted from the head's input, out of that input"
    moved_by: ClassVar[str] = "rho"
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({"prior_map": Need("prior_map")})
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"rho": 0.0})

    prior_map: PriorMap | str | PathLike[str]
    rho: float = 1.0
    lam: float = 0.5  # used with `gate` only
    gate: bool = False
    protect: bool = False

    def __post_init__(self) -> None:
        self.check_settings()
        object.__setattr__(self, "prior_map", self._map)

    def check_settings(self) -> None:
        for name in ("rho", "lam"):
            check_strength(name, getattr(self, name))
        for name in ("gate", "protect"):
            check_switch(name, getattr(self, name))

    @property
    def _map(self) -> PriorMap:
        return load_if_path("prior_map", self.prior_map, PriorMap)

    @property
    def settings(self) -> Settings:
        """In terms of MGAP's settings: rho is alpha."""
        return Settings(alpha=self.rho, lam=self.lam, gate=self.gate, protect=self.protect)

    @property
    def learnt(self) -> PriorMap:
        return self._map

    @property
    def subspace(self) -> Subspace:
        return self._map.prior

    def correction(self, backbone: Backbone, head: Head, tap: Tap) -> Removal:
        self._map.require(backbone)
        return self.bind(head, tap)

    def bind(self, head: Head, tap: Tap) -> Removal:
        return Removal(self._map, head, self.settings, tap)

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        removal = Removal(self._map, head, replace(self.settings, alpha=float(strength)), Tap())
        h = inputs.h.to(removal.basis)
        with torch.no_grad():
            gate = removal.gate(h, head.product(h))
        return removal.move(h, removal.predict(h), gate)
