"""Principal angles between subspaces (Bjoerck and Golub, 1973): how far two priors differ, whatever their bases.

    cos theta_i = the singular values of Qa'Qb,   sin theta_i = those of Qb - Qa Qa'Qb,   0 <= theta_1 <= ... <= 90 degrees

A small angle comes from its sine, where the cosine loses its digits; a large one from its cosine. The mean of cos^2 is the
share of the smaller subspace that lies in the larger one. Two random subspaces of K1 and K2 among d dimensions share
max(K1, K2) / d on average; every figure is given with this chance level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mgap.errors import DegenerateSubspace, SettingError

Matrix = tuple[tuple[float, ...], ...]


def principal_angles(one: Tensor, other: Tensor) -> Tensor:
    """The angles between the column spans of [d, K1] and [d, K2], in degrees, ascending, [min(K1, K2)] float64."""
    if one.ndim != 2 or other.ndim != 2 or one.shape[0] != other.shape[0]:
        shapes = f"{list(one.shape)} and {list(other.shape)}"
        raise SettingError(f"angles are between two matrices of columns of one length, not {shapes}: give [d, K1] and [d, K2]")
    wide, narrow = sorted(map(orthonormal, (one, other)), key=lambda basis: -basis.shape[1])
    inside = wide.T @ narrow  # [K, k], k <= K
    cosines = torch.linalg.svdvals(inside)  # descending
    sines = torch.linalg.svdvals(narrow - wide @ inside).flip(0)  # ascending
    return torch.rad2deg(torch.atan2(sines, cosines))


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis [d, K] float64 of the columns' span; refuses linearly dependent columns."""
    columns = columns.detach().to("cpu", torch.float64)
    if 0 in columns.shape:
        raise DegenerateSubspace(f"a subspace needs directions: {list(columns.shape)} has none")
    left: Tensor
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    tiny = torch.finfo(torch.float64).eps * max(columns.shape) * float(values[0])
    if columns.shape[1] > columns.shape[0] or not bool(values[-1] > tiny):
        raise DegenerateSubspace(f"{columns.shape[1]} columns span fewer directions: leave out those that repeat others")
    return left


def share_inside(vector: Tensor, basis: Tensor) -> float:
    """|V'w|^2 / |w|^2, 0..1: the share of a vector [d] in the span of an orthonormal basis [d, K]; K / d by chance."""
    vector = vector.to(basis)
    return float((vector @ basis).square().sum() / vector.square().sum())


@dataclass(frozen=True)
class Overlap:
    """How much two subspaces overlap."""

    degrees: tuple[float, ...]  # principal angles, ascending
    largest: float  # the largest angle: 0 if one subspace contains the other
    shared: float  # mean cos^2, 0..1: the share of the smaller subspace that lies in the larger one
    chance: float  # the mean of `shared` between random subspaces of these sizes

    @classmethod
    def of(cls, one: Tensor, other: Tensor) -> Overlap:
        angles = principal_angles(one, other)
        shared = float(torch.deg2rad(angles).cos().square().mean())
        return cls(tuple(angles.tolist()), float(angles[-1]), shared, max(one.shape[1], other.shape[1]) / one.shape[0])


@dataclass(frozen=True)
class SubspaceComparison:
    """Pairwise comparisons of one model's subspaces, as matrices with rows and columns in the order of the labels."""

    name: str  # what differs between them
    labels: tuple[str, ...]
    counts: tuple[int, ...]  # N, the states that each was fitted on
    rank: int
    first: Matrix  # degrees between the first directions alone
    largest: Matrix  # degrees, of the whole subspaces
    shared: Matrix  # mean cos^2, 0..1
    chance: float
    readout: tuple[float, ...] | None  # the share of the line between two answers that lies in each, 0..1

    @classmethod
    def of(cls, name: str, bases: Mapping[str, tuple[Tensor, int]], line: Tensor | None = None) -> SubspaceComparison:
        """`bases` has, by label, an orthonormal basis [d, K] with the strongest direction first, and its N; all of one rank."""
        if len({basis.shape for basis, _ in bases.values()}) != 1:
            shapes = ", ".join(f"{label} {list(basis.shape)}" for label, (basis, _) in bases.items())
            raise SettingError(f"{name}: subspaces of one width and rank are compared, not {shapes or 'none'}: cut them to one")
        first = [
            [float(principal_angles(one[:, :1], other[:, :1])) for other, _ in bases.values()] for one, _ in bases.values()
        ]
        overlaps = [[Overlap.of(one, other) for other, _ in bases.values()] for one, _ in bases.values()]
        return cls(
            name,
            tuple(bases),
            tuple(count for _, count in bases.values()),
            next(basis.shape[1] for basis, _ in bases.values()),
            tuple(map(tuple, first)),
            tuple(tuple(pair.largest for pair in row) for row in overlaps),
            tuple(tuple(pair.shared for pair in row) for row in overlaps),
            overlaps[0][0].chance,
            None if line is None else tuple(share_inside(line, basis) for basis, _ in bases.values()),
        )
