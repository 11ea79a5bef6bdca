"""The bank projected onto its first two principal directions, with the distances of its members to each other.

Points that are close in the projection may be far apart in all dimensions, so every state also has its d_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mgap.priors.bank import Bank
from mgap.priors.faiss_index import sample_rows
from mgap.priors.manifold import MEMBERS, Manifold
from mgap.priors.spectrum import Spectrum, principal_directions


class Place(NamedTuple):
    """The position of a state."""

    x: float
    y: float
    distance: float  # d_k, in all dimensions
    is_departed: bool  # d_k > tau


@dataclass(frozen=True)
class Landscape:
    """A bank's projection and distances."""

    manifold: Manifold
    axes: Spectrum
    points: tuple[tuple[float, float], ...]  # of the members shown
    distances: tuple[float, ...]  # d_k of members among the other members
    shares: tuple[float, float]  # of the bank's variance, 0..1, along x and y
    states: int  # in the bank

    @classmethod
    def of(cls, bank: Bank, manifold: Manifold, *, shown: int = 600, seed: int = 0) -> Landscape:
        """At most `shown` members are shown, sampled with the seed."""
        axes = plane_of(bank.parts)
        members = sample_rows(len(bank), min(MEMBERS, len(bank)), 0)
        distances = manifold.search.nearest_to_members(members, manifold.k)[0].mean(-1)
        sample = bank.sample(min(shown, len(bank)), seed).states
        return cls(
            manifold=manifold,
            axes=axes,
            points=tuple((x, y) for x, y in project(axes, sample).tolist()),
            distances=tuple(distances.tolist()),
            shares=shares_of(axes),
            states=len(bank),
        )

    def place(self, states: Tensor) -> list[Place]:
        """The positions of states [n, d]."""
        pairs = zip(project(self.axes, states).tolist(), self.manifold.distances(states).tolist(), strict=True)
        return [Place(x, y, distance, distance > self.manifold.tau) for (x, y), distance in pairs]


def plane_of(parts: Sequence[Tensor]) -> Spectrum:
    """The first two principal directions of states, given in parts [n, d]."""
    return principal_directions((part.float() for part in parts), 2)


def project(axes: Spectrum, states: Tensor) -> Tensor:
    """Coordinates [n, 2] float64 along the principal directions, each signed so that its largest entry is positive."""
    largest = axes.basis.gather(0, axes.basis.abs().argmax(0, keepdim=True))  # [1, 2]
    return (states.detach().to("cpu", torch.float64) - axes.mean) @ (axes.basis * largest.sign())


def shares_of(axes: Spectrum) -> tuple[float, float]:
    """The share of the variance, 0..1, along each of the two directions."""
    variance = axes.singular_values[:2].square() / axes.total_variance
    return float(variance[0]), float(variance[1])
