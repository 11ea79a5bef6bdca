"""Tether: step away from the prior where the model is unsure, then come back to the states of normal decoding.

    u = h_cut + rho (h - h_blind)     the second term only where the plain prediction's entropy is above `unsure`
    h' = u                            if d_k(u) <= tau
    h' = u + t (n(u) - u)             else, with the smallest t of 1/8 .. 1 for which d_k(h') <= tau, or 1

h_cut is MGAP's state at `alpha` (0: h itself), n(u) the mean of the k states in a bank that are nearest to u; d_k and tau are
those of the diagnosis (priors/manifold.py). First tokens of answers are compared with first tokens in the bank, later ones with
later ones: the two lie far apart, and a common tau would let first tokens go anywhere. A contrast alone leaves the region of
normal decoding. Coming back keeps as much of the step as there are states of normal decoding in its direction. With
`towards="plain"` it stops at the border instead: h replaces n(u), and h' is the largest step that does not depart. Plain states
outside come back too. Cost: see kinds/blind_branch.py, plus a second head product and two searches in the bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.base import Need, Removable, Tap, load_if_path
from mgap.methods.head_inputs import Weight
from mgap.methods.kinds.blind_branch import BlindMethod, Move
from mgap.methods.mgap import Settings, cut_state, gate_of
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.priors.subspace import Subspace
from mgap.settings import check_choice, check_count, check_share, check_strength

STEPS = 8  # of the way back
TOWARDS = ("bank", "plain")


def come_back(manifold: Manifold, states: Tensor, plain: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """h' [B, d] of states u [B, d], and how far each came back, t [B]; states within tau do not move.

    They move towards their neighbours, or towards the plain states [B, d]: the largest step that does not depart.
    """
    distances, centres = (part.to(states) for part in manifold.centres(states))
    is_out = distances > manifold.tau
    back = torch.zeros_like(distances)
    if not is_out.any():
        return states, back
    u, target = states[is_out], (centres if plain is None else plain)[is_out]  # [n, d]
    t = torch.arange(1, STEPS + 1, device=u.device).to(u) / STEPS
    path = u + t.view(-1, 1, 1) * (target - u)  # [steps, n, d]
    is_in = (manifold.distances(path.flatten(0, 1)).view(STEPS, -1).to(u.device) <= manifold.tau).int()
    is_in[-1] = 1
    first = is_in.argmax(0)  # the first step inside
    back[is_out] = t[first]
    returned = states.clone()
    returned[is_out] = path[first, torch.arange(len(u), device=u.device)]
    return returned, back


class Tethered:
    """The formula above, bound to one head."""

    def __init__(self, method: Tether, manifolds: dict[bool, Manifold], head: Head) -> None:
        self.manifolds, self.head, self.rho, self.towards = manifolds, head, method.rho, method.towards
        self.settings = Settings(method.alpha, method.lam)
        self.basis = None if method.subspace is None else method.subspace.basis.to(head.device, head.wide)  # [d, K]

    def cut(self, h: Tensor, entropy: Tensor) -> Tensor:
        """h_cut [B, d]."""
        if self.basis is None:
            return h
        coeff, norm = h @ self.basis, torch.linalg.vector_norm(h, dim=-1)
        return cut_state(h, self.basis, coeff, gate_of(norm, coeff, entropy.to(h), self.settings), norm, self.settings)

    def move(self, h: Tensor, blind: Tensor, entropy: Tensor, rho: Weight, is_first: bool) -> tuple[Tensor, Tensor]:
        """h' [B, d] and t [B]."""
        stepped = self.cut(h, entropy) + rho * (h - blind)
        return come_back(self.manifolds[is_first], stepped, h if self.towards == "plain" else None)

    def states(self, h: Tensor, blind: Tensor, entropy: Tensor, strength: Weight, *, is_first: bool) -> Tensor:
        return self.move(h, blind, entropy, strength, is_first)[0]

    def logits(self, h: Tensor, blind: Tensor, entropy: Tensor, *, is_first: bool) -> tuple[Tensor, dict[str, Tensor]]:
        returned, back = self.move(h, blind, entropy, self.rho, is_first)
        moved, plain = (self.head.post(self.head.product(x)) for x in (returned, h))
        return moved - plain, {"back": back, "step": torch.linalg.vector_norm(returned - h, dim=-1)}


@dataclass(frozen=True)
class Tether(BlindMethod):
    """A step that comes back. `bank` holds states of plain answers like those to decode, or is the folder it was saved to.

    `alpha`, `lam` and `rank` are MGAP's, to add its step: they need a `prior`.
    """

    name: ClassVar[str] = "tether"
    summary: ClassVar[str] = "step away from the prior where the model is unsure, and back to the states of normal decoding"
    touches_all: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({"bank": Need("bank"), "prior": Need("subspace", only_with="alpha")})
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"rho": 0.0, "alpha": 0.0, "towards": "plain"})

    bank: Bank | str | PathLike[str] = field(kw_only=True)
    k: int = 10
    delta: float = 0.05
    towards: str = "bank"
    prior: Subspace | None = None
    alpha: float = 0.0
    lam: float = 0.5
    rank: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bank", self._bank)
        if self.alpha and not isinstance(self.prior, Subspace):
            raise SettingError(f"alpha={self.alpha} takes a part of a prior away, and there is none: give prior, or alpha=0")
        self.subspace  # noqa: B018  refuses a rank that the prior does not have

    def check_settings(self) -> None:
        super().check_settings()
        check_count("k", self.k, least=1)
        if not 0 < check_share("delta", self.delta) < 1:
            raise SettingError(f"delta={self.delta} must be between 0 and 1: the share of plain states that count as departed")
        check_choice("towards", self.towards, TOWARDS)
        for name in ("alpha", "lam"):
            check_strength(name, getattr(self, name))
        if self.rank is not None:
            check_count("rank", self.rank, least=1)

    @property
    def _bank(self) -> Bank:
        return load_if_path("bank", self.bank, Bank)

    @property
    def subspace(self) -> Subspace | None:
        """The subspace that `alpha` acts in, if any."""
        if self.prior is None or self.alpha == 0:
            return None
        return self.prior if self.rank is None else self.prior.truncate(self.rank)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        self._bank.require(backbone)
        if self.prior is not None:
            self.prior.require(backbone)
        return super().attach(backbone, tap)

    def bind(self, head: Head) -> Move:
        return Tethered(self, manifolds_of(self._bank, self.k, self.delta, head.device), head)


@lru_cache(maxsize=4)  # computing tau takes longer than many tokens, and is the same for every strength
def manifolds_of(bank: Bank, k: int, delta: float, device: torch.device) -> dict[bool, Manifold]:
    """The manifolds of first tokens (True) and of later ones (False); a bank with only one kind serves for both."""
    is_first = bank.steps == 0
    if bool(is_first.all()) or not bool(is_first.any()):
        manifold = Manifold.of(bank, k=k, delta=delta, device=device)
        return {True: manifold, False: manifold}
    return {first: Manifold.of(bank.only(is_first == first), k=k, delta=delta, device=device) for first in (True, False)}
