"""The first token of many questions under every MGAP setting of a grid, from one pass through the model.

MGAP acts after the last layer, so the head reads the states of plain decoding whatever the setting: they are read once, and
each setting costs one more small product. Tokens equal those of decoding, up to the rounding of its logits: the correction is
the same, cast to the model's dtype. Memory is bounded by one batch of logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mgap.backbones.checked_generate import likeliest
from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction, Settings, entropy_of, gate_of
from mgap.settings import check_count, check_strength


@dataclass(frozen=True)
class Point:
    """One setting of the grid, with MGAP's names."""

    alpha: float
    lam: float
    rank: int
    gate: bool = True
    protect: bool = True

    @property
    def settings(self) -> Settings:
        return Settings(alpha=self.alpha, lam=self.lam, gate=self.gate, protect=self.protect)

    @property
    def path(self) -> tuple[int, float, bool, bool]:
        """What stays the same while alpha grows."""
        return self.rank, self.lam, self.gate, self.protect

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Grid:
    """The values to try for each setting, ascending. Alpha starts at 0, which is plain decoding."""

    alpha: tuple[float, ...] = tuple(step / 4 for step in range(33))  # 0 to 8
    lam: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    rank: tuple[int, ...] = (1, 3, 5, 10)  # the paper's
    gate: tuple[bool, ...] = (True,)
    protect: tuple[bool, ...] = (True,)

    def __post_init__(self) -> None:
        for f in fields(self):
            values = getattr(self, f.name)
            if not values:
                raise SettingError(f"the grid has no values of {f.name}: give some, or leave it out")
            for value in values:
                _check(f.name, value)
            if f.name in ("alpha", "lam"):
                values = map(float, values)
            ascending = sorted({0.0, *values} if f.name == "alpha" else set(values))
            object.__setattr__(self, f.name, tuple(ascending))

    @classmethod
    def of(cls, values: Mapping[str, Sequence[Any]]) -> Grid:
        """From lists by name; other settings keep their defaults."""
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                raise SettingError(f"the grid has no {name!r}: choose from {', '.join(names)}")
        return cls(**{name: tuple(several) for name, several in values.items()})

    def points(self) -> list[Point]:
        """All settings, path by path, alpha ascending on each."""
        paths = product(self.rank, self.lam, self.gate, self.protect)
        return [Point(alpha, lam, rank, gate, protect) for rank, lam, gate, protect in paths for alpha in self.alpha]

    def to_json(self) -> dict[str, list[Any]]:
        return {f.name: list(getattr(self, f.name)) for f in fields(self)}


def _check(name: str, value: Any) -> None:
    if name in ("alpha", "lam"):
        check_strength(name, value)
    elif name == "rank":
        check_count(name, value, 1)
    elif not isinstance(value, bool):
        raise SettingError(f"{name}={value!r} must be true or false")


@dataclass(frozen=True)
class Swept:
    """The results of a sweep, in the order of its points."""

    points: tuple[Point, ...]
    tokens: Tensor  # [points, n] the likeliest first token
    steps: Tensor  # [points] the mean of |h_cut - h|


def sweep(
    head: Head,
    basis: Tensor,
    states: Tensor,
    points: Sequence[Point],
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] | None = None,
) -> Swept:
    """Apply every setting to plain states [n, d]; `basis` is [d, K] with K at least the largest rank.

    `progress` is called with the number of states done.
    """
    corrections = {rank: _correction(head, basis, rank) for rank in sorted({point.rank for point in points})}
    tokens = torch.empty(len(points), len(states), dtype=torch.long)
    steps = torch.zeros(len(points), dtype=torch.float64)
    for span in _spans(len(states), batch_size):
        h = states[span].to(head.device, head.wide)  # [b, d]
        with torch.no_grad():
            output, wide = head.own_product(h), head.product(h)  # [b, vocab], of plain decoding and for methods
            entropy, norm = entropy_of(head.post(wide)), torch.linalg.vector_norm(h, dim=-1)
            coeffs = {rank: h @ correction.basis for rank, correction in corrections.items()}  # [b, K]
            for index, point in enumerate(points):
                coeff, s = coeffs[point.rank], point.settings
                gate = gate_of(norm, coeff, entropy, s)
                logits = head.post(corrections[point.rank].correct(h, output, wide, coeff, norm, gate, s))
                tokens[index, span] = likeliest(logits.float(), f"mgap at alpha {point.alpha:g}").cpu()
                steps[index] += (gate.beta * torch.linalg.vector_norm(coeff, dim=-1)).sum().double().cpu()
        if progress is not None:
            progress(span.stop)
    return Swept(tuple(points), tokens, steps / max(1, len(states)))


def cut_states(head: Head, basis: Tensor, states: Tensor, point: Point, *, batch_size: int = 64) -> Tensor:
    """h_cut [n, d] for plain states [n, d], on the head's device."""
    correction = _correction(head, basis, point.rank, point.settings)
    return torch.cat([correction.cut(states[span]) for span in _spans(len(states), batch_size)])


def _correction(head: Head, basis: Tensor, rank: int, settings: Settings | None = None) -> Correction:
    if rank > basis.shape[1]:
        raise SettingError(f"rank={rank} is larger than {basis.shape[1]}, the prior's: fit a larger one, or try smaller ones")
    return Correction(basis[:, :rank].contiguous(), head, settings or Settings(0.0, 0.0), Tap())


def _spans(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(count, start + size)) for start in range(0, count, size))
