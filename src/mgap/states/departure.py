"""How far a state is from those of normal decoding (paper, section 3.2): the mean distance to its k nearest in a bank.

    d_k(h; S) = 1/k sum over the k nearest s in S of |h - s|,   departure: d_k > tau,   tau = (1 - delta) quantile of d_k over S

A member of the bank is never its own neighbour; an equal state elsewhere in it is. Distances are exact, from differences and
not from products; a bounded number of them is held at a time. They are computed where the bank lies: on the GPU if it is there.
The paper prints neither k nor delta; 150 of 3000 plain states beyond tau in its table mean delta 0.05.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mgap.errors import NonFiniteStates, SettingError
from mgap.states.bank import Bank

METRICS = ("euclidean", "cosine")
_AT_ONCE = 1 << 24  # distances: 64 MiB in float32


def neighbour_distances(states: Tensor, bank: Tensor, k: int = 10, metric: str = "euclidean") -> Tensor:
    """d_k [n] of states [n, d] that are not members of the bank [m, d]."""
    return _nearest(states.to(bank), bank, k, metric, are_members=False)


def member_distances(bank: Tensor, k: int = 10, metric: str = "euclidean") -> Tensor:
    """d_k [m] of every member of the bank [m, d] among the others."""
    return _nearest(bank, bank, k, metric, are_members=True)


def threshold(bank: Tensor, k: int = 10, delta: float = 0.05, metric: str = "euclidean") -> float:
    """tau: a share delta of the bank's own members is farther from the others."""
    if not 0 < delta < 1:
        raise SettingError(f"delta={delta} must be between 0 and 1: the share of plain states that count as departed")
    return float(torch.quantile(member_distances(bank, k, metric), 1 - delta))


def _nearest(states: Tensor, bank: Tensor, k: int, metric: str, *, are_members: bool) -> Tensor:
    others = len(bank) - are_members
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= others:
        raise SettingError(f"k={k!r} must be a whole number from 1 to {others}, the other states in the bank: collect more")
    if metric not in METRICS:
        raise SettingError(f"metric={metric!r}: choose from {', '.join(METRICS)}")
    if not states.isfinite().all():
        raise NonFiniteStates("some states are NaN or infinite: load the model with dtype float32")
    is_cosine = metric == "cosine"
    rows, members = (_directions(states), _directions(bank)) if is_cosine else (states, bank)
    size, found = max(1, _AT_ONCE // len(bank)), []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        apart = torch.cdist(part, members, compute_mode="donot_use_mm_for_euclid_dist")  # [part, m]
        if are_members:
            apart[:, start : start + size].fill_diagonal_(torch.inf)
        nearest = apart.topk(k, largest=False).values  # [part, k]
        found.append((nearest.square() / 2 if is_cosine else nearest).mean(-1))  # |a - b|^2 / 2 = 1 - cos of unit vectors
    return torch.cat(found) if found else states.new_empty(0)


def _directions(states: Tensor) -> Tensor:
    if (states == 0).all(-1).any():
        raise SettingError("a state of zeros has no direction: use metric=euclidean")
    return F.normalize(states, dim=-1, eps=0.0)


@dataclass(frozen=True)
class Manifold:
    """A bank with what is asked of it: how many neighbours, which distance, and from where on a state has departed."""

    states: Tensor  # [n, d], where distances are to be computed
    tau: float
    k: int
    delta: float
    metric: str

    @classmethod
    def of(
        cls,
        bank: Bank,
        *,
        k: int = 10,
        delta: float = 0.05,
        metric: str = "euclidean",
        device: torch.device | str | None = None,
    ) -> Manifold:
        """`device` is where to compute; None: where the bank is."""
        states = bank.states.to(bank.states.device if device is None else device)
        return cls(states, threshold(states, k, delta, metric), k, delta, metric)

    def distances(self, states: Tensor) -> Tensor:
        """d_k [n] of states [n, d] from elsewhere."""
        return neighbour_distances(states, self.states, self.k, self.metric)

    def to_json(self) -> dict[str, Any]:
        """For a run's plan."""
        return {"tau": self.tau, "k": self.k, "delta": self.delta, "bank": len(self.states), "metric": self.metric}
