"""Rates with 95% intervals: Wilson's for independent trials, a bootstrap over pictures for everything else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

_Z = 1.959963984540054  # 97.5% quantile of the normal distribution
Counts = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class Rate:
    """A share between 0 and 1, its 95% interval, and the number of trials. Without trials it is 0 in [0, 1]."""

    value: float
    low: float
    high: float
    of: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(hits: int, of: int) -> Rate:
    """Wilson's score interval of a share of independent trials."""
    if of == 0:
        return Rate(0.0, 0.0, 1.0, 0)
    share, spread = hits / of, _Z * _Z / of
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + (spread / 2) ** 2) / (1 + spread)
    return Rate(share, max(0.0, centre - half), min(1.0, centre + half), of)


def bootstrap(statistic: Callable[[Counts], Counts], groups: Counts, of: int, *, draws: int = 2000, seed: int = 0) -> Rate:
    """Percentile interval of a statistic of summed counts, resampling whole groups.

    `groups` [groups, counts] is what one picture adds to each count. Answers about one picture are not independent, so pictures
    are drawn, not answers. `statistic` maps summed counts [..., counts] to a share [...]. A share of 0 or 1 has no spread, so
    it gets Wilson's interval.
    """
    if of == 0:
        return Rate(0.0, 0.0, 1.0, 0)
    value = float(statistic(groups.sum(0)))
    if value in (0.0, 1.0):
        return wilson(round(value * of), of)
    low, high = np.quantile(statistic(draw(groups, draws=draws, seed=seed)), [0.025, 0.975])
    return Rate(value, float(low), float(high), of)


def draw(groups: Counts, *, draws: int = 2000, seed: int = 0) -> Counts:
    """Summed counts [draws, counts] of groups drawn with replacement; the draws depend only on the number of groups."""
    sums: Counts = drawn_weights(len(groups), draws=draws, seed=seed) @ groups
    return sums


def drawn_weights(groups: int, *, draws: int = 2000, seed: int = 0) -> Counts:
    """How often each draw has each group: [draws, groups]."""
    return _weights(groups, draws, seed)


@lru_cache(maxsize=4)  # all figures and methods of a run share the draws, which take most of the time
def _weights(groups: int, draws: int, seed: int) -> Counts:
    return np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=draws).astype(float)


def mcnemar(gained: int, lost: int) -> float:
    """The exact two-sided p-value of McNemar's test: the chance of a split of the changed answers at least this unequal."""
    changed, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(changed, k) for k in range(fewer + 1))
    return min(1.0, float(Fraction(2 * tail, 2**changed)))


def share(part: Counts, whole: Counts) -> Counts:
    """part / whole, 0 where whole is 0."""
    shares: Counts = np.divide(part, whole, out=np.zeros_like(whole, dtype=float), where=whole > 0)
    return shares
