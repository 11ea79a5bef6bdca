"""Split the shift of a head input (paper, representation analysis) into its parts inside and outside the prior's subspace.

    h' - h = V V'(h' - h) + (I - V V')(h' - h)

MGAP moves states only inside (its Property III); a contrastive method moves them wherever its second branch differs. Sums are
in float64, but states have the model's own precision: the outside part of an inside step is rounding error, not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mgap.errors import NonFiniteStates, SettingError

Terms = Mapping[str, tuple[Tensor, Tensor]]  # a figure over many states is sum(first [n]) / sum(second [n])


@dataclass(frozen=True)
class StateShift:
    """The lengths of one step for each state, [n] float64."""

    size: Tensor  # |h|
    size_after: Tensor  # |h'|
    prior: Tensor  # |V'h|, the size of the projection
    prior_after: Tensor  # |V'h'|
    inside: Tensor  # |V V'(h' - h)|
    outside: Tensor  # |(I - V V')(h' - h)|

    def terms(self) -> Terms:
        """Means over the states, but `held` is the share of the summed squared shifts that lies inside.

        The share of a state that hardly moves is rounding error; in the sum it counts as little as the state moves.
        """
        is_state = (self.size > 0).double()
        size = self.size.where(self.size > 0, 1.0)
        size_after = self.size_after.where(self.size_after > 0, 1.0)
        ones = torch.ones_like(is_state)
        squares = self.inside.square()
        whole = squares + self.outside.square()
        return {
            "prior": (self.prior, ones),
            "prior_share": (self.prior / size, is_state),
            "prior_after": (self.prior_after, ones),
            "prior_after_share": (self.prior_after / size_after, (self.size_after > 0).double()),
            "inside": (self.inside, ones),
            "inside_share": (self.inside / size * is_state, is_state),
            "outside": (self.outside, ones),
            "outside_share": (self.outside / size * is_state, is_state),
            "held": (squares, whole),
            "moved_share": (whole.sqrt() / size * is_state, is_state),
        }


def split_shift(before: Tensor, after: Tensor, basis: Tensor) -> StateShift:
    """Split the shift between states [n, d] and [n, d] by an orthonormal basis V [d, K]."""
    if before.shape != after.shape or before.ndim != 2 or before.shape[1] != basis.shape[0]:
        shapes = f"{list(before.shape)} and {list(after.shape)} with a basis {list(basis.shape)}"
        raise SettingError(f"states before and after must be [n, d] alike, and the basis [d, K]: not {shapes}")
    if not (before.isfinite().all() and after.isfinite().all()):
        raise NonFiniteStates("some states are NaN or infinite: load the model with dtype float32")
    h, moved = before.double(), after.double()
    V = basis.to(h)
    step = moved - h
    coeff = step @ V  # [n, K]
    return StateShift(
        size=_length(h),
        size_after=_length(moved),
        prior=_length(h @ V),
        prior_after=_length(moved @ V),
        inside=_length(coeff),
        outside=_length(step - coeff @ V.T),
    )


def _length(vectors: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return length
