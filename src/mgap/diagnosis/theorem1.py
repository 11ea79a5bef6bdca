"""Theorem 1 (paper, Property I): when a step along the prior's projection leads towards a reference state, and how far.

    e = h - h_gt,   h_proj = V V'h,   |h - beta h_proj - h_gt|^2 = |e|^2 - 2 beta <e, h_proj> + beta^2 |h_proj|^2

So for beta >= 0 the distance shrinks exactly on (0, 2 beta*), beta* = <e, h_proj> / |h_proj|^2, which is empty unless
<e, h_proj> > 0; beta* is the best step. `diagnosis/reference_states.py` discusses the choice of reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mgap.diagnosis.shift import Terms
from mgap.errors import NonFiniteStates, SettingError


@dataclass(frozen=True)
class Oracle:
    """States, their references, and the best step along the prior from one to the other; float64."""

    h: Tensor  # [n, d]
    reference: Tensor  # [n, d], h_gt
    projection: Tensor  # [n, d], h_proj

    @classmethod
    def of(cls, h: Tensor, reference: Tensor, basis: Tensor) -> Oracle:
        """For states [n, d], their references [n, d] and an orthonormal basis V [d, K]."""
        if h.shape != reference.shape or h.ndim != 2 or h.shape[1] != basis.shape[0]:
            shapes = f"{list(h.shape)} and {list(reference.shape)} with a basis {list(basis.shape)}"
            raise SettingError(f"states and references must be [n, d] alike, and the basis [d, K]: not {shapes}")
        if not (h.isfinite().all() and reference.isfinite().all()):
            raise NonFiniteStates("some states are NaN or infinite: load the model with dtype float32")
        h, reference = h.double(), reference.double().to(h.device)
        V = basis.to(h)
        return cls(h, reference, (h @ V) @ V.T)

    @property
    def distance(self) -> Tensor:
        """|e| [n]."""
        return self.distance_of(self.h)

    @property
    def aligned(self) -> Tensor:
        """<e, h_proj> [n]."""
        return ((self.h - self.reference) * self.projection).sum(-1)

    @property
    def holds(self) -> Tensor:
        """Whether the theorem's condition holds, bool [n]."""
        return self.aligned > 0

    @property
    def best(self) -> Tensor:
        """beta* [n]: the best step of at least 0, so 0 if the condition does not hold."""
        size = self.projection.square().sum(-1)
        return torch.where(self.holds, self.aligned / size.where(size > 0, 1.0), 0.0)

    def contains(self, beta: Tensor | float) -> Tensor:
        """Whether beta lies in (0, 2 beta*), bool [n]: the steps that lead closer."""
        steps = self._steps(beta)
        return (steps > 0) & (steps < 2 * self.best)

    def distance_after(self, beta: Tensor | float) -> Tensor:
        """|h - beta h_proj - h_gt| [n]."""
        return self.distance_of(self.h - self._steps(beta).unsqueeze(-1) * self.projection)

    def distance_of(self, states: Tensor) -> Tensor:
        """The distances [n] of states [n, d] to the references of h."""
        distance: Tensor = torch.linalg.vector_norm(states.to(self.h) - self.reference, dim=-1)
        return distance

    def terms(self, after: Tensor, beta: Tensor | None = None) -> Terms:
        """Terms of the theorem, of a method's states `after` [n, d], and of its own beta [n] if it has one.

        `beta` and `best` are means over the states where the condition holds. `closer` is the share of the summed distances
        that the method removes: a state already at its reference can move many times its error, and counts by that error only.
        """
        ones, holds, distance = torch.ones_like(self.distance), self.holds.double(), self.distance
        size = torch.linalg.vector_norm(self.h, dim=-1)
        terms = {
            "distance": (distance / size.where(size > 0, 1.0), ones),
            "holds": (holds, ones),
            "best": (self.best, holds),
            "closer_best": (distance - self.distance_after(self.best), distance),
            "closer": (distance - self.distance_of(after), distance),
        }
        if beta is not None:
            steps = self._steps(beta)
            terms |= {"beta": (steps * holds, holds), "contains": (self.contains(steps).double(), ones)}
        return terms

    def _steps(self, beta: Tensor | float) -> Tensor:
        return torch.as_tensor(beta).to(self.h).expand(len(self.h))
