"""How far a state is from those of normal decoding (paper, section 3.2): the mean distance to its k nearest in a bank.

    d_k(h; S) = 1/k sum over the k nearest s in S of |h - s|,   departure: d_k > tau,   tau = (1 - delta) quantile of d_k over S

A member of the bank is never its own neighbour; an equal state elsewhere in it is. Nor are other tokens of its own answer, in a
bank along answers: what is judged is of other answers too. Distances are exact (priors/neighbours.py) and computed where the
bank lies, on the GPU if it is there; through large banks on a CPU, an index can search instead (priors/faiss_index.py), and how
far it is off is measured and kept. tau is over all members of a bank of up to 10,000 states, over 10,000 drawn from it (seed
0), each against the whole bank, where there are more. The paper prints neither k nor delta; 150 of 3000 plain states beyond
tau in its table mean delta 0.05.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mgap.errors import SettingError
from mgap.priors.bank import Bank
from mgap.priors.faiss_index import Approximate, SearchError, Told, check_index, drawn
from mgap.priors.neighbours import METRICS, Exact, Parts, Progress

__all__ = ["METRICS", "SEARCHES", "Manifold", "check_search", "member_distances", "neighbour_distances", "threshold"]

SEARCHES = ("auto", "exact", "approximate")
MEMBERS = 10_000  # that tau is taken over, at most
_LARGE = 1 << 29  # numbers in a bank; on two cores tau takes minutes beyond, exactly
_SEED = 0


def neighbour_distances(states: Tensor, bank: Parts, k: int = 10, metric: str = "euclidean") -> Tensor:
    """d_k [n] of states [n, d] that are not members of the bank [m, d], which may come in parts."""
    search = Exact.of(bank, metric)
    return search.nearest(states, k)[0].mean(-1).to(search.wide)


def member_distances(bank: Parts, k: int = 10, metric: str = "euclidean") -> Tensor:
    """d_k [m] of every member of the bank [m, d] among the others."""
    search = Exact.of(bank, metric)
    return search.among(torch.arange(len(search)), k)[0].mean(-1).to(search.wide)


def threshold(bank: Parts, k: int = 10, delta: float = 0.05, metric: str = "euclidean") -> float:
    """tau: a share delta of the bank's own members is farther from the others."""
    return _tau(Exact.of(bank, metric), k, delta).value


def _tau(search: Exact | Approximate, k: int, delta: float, progress: Progress | None = None) -> Tau:
    if not 0 < delta < 1:
        raise SettingError(f"delta={delta} must be between 0 and 1: the share of plain states that count as departed")
    members = drawn(len(search), MEMBERS, _SEED)
    apart = search.among(members, k, progress=progress)[0].mean(-1).to(search.wide)
    return Tau(float(torch.quantile(apart, 1 - delta)), *interval(apart, 1 - delta), len(members))


class Tau(NamedTuple):
    value: float
    low: float
    high: float | None
    members: int


def interval(values: Tensor, share: float) -> tuple[float, float | None]:
    """Between which of n values the quantile of what they were drawn from lies, with 95%; None: above them all.

    So many values lie below that quantile as a binomial count of n draws says; the ranks cut 2.5% off it on either side.
    """
    n, ordered = len(values), values.sort().values
    below = torch.arange(n + 1, dtype=torch.float64)
    log_ways = math.lgamma(n + 1) - torch.lgamma(below + 1) - torch.lgamma(n - below + 1)
    up_to = (log_ways + below * math.log(share) + (n - below) * math.log1p(-share)).exp().cumsum(0)
    low, high = int((up_to <= 0.025).sum()), int((up_to < 0.975).sum()) + 1  # ranks, from 1
    return float(ordered[low - 1]) if low else 0.0, float(ordered[high - 1]) if high <= n else None


@dataclass(frozen=True)
class Manifold:
    """A bank with what is asked of it: how many neighbours, which distance, and from where on a state has departed."""

    search: Exact | Approximate  # through the bank
    tau: float
    k: int
    delta: float
    metric: str
    members: int  # that tau is taken over
    interval: tuple[float, float | None]  # of tau, with 95%: for states like the bank's, taken as drawn one by one

    @classmethod
    def of(
        cls,
        bank: Bank,
        *,
        k: int = 10,
        delta: float = 0.05,
        metric: str = "euclidean",
        device: torch.device | str | None = None,
        search: str = "auto",
        progress: Told | None = None,
    ) -> Manifold:
        """`device` is where to compute; None: where the bank is. `progress` is told what is being done, how far, of how much.

        `search` is exact, approximate (an index; needs FAISS), or auto: exact, but for banks of more than 2^29 numbers (131,072
        states of width 4096) on a CPU where FAISS is installed.
        """
        check_search(search)
        exact = Exact.of(bank.parts, metric, device, bank.rows)
        takes_index = search == "approximate" or (search == "auto" and _suits_an_index(exact))
        through = Approximate.of(exact, k, progress) if takes_index else exact
        stage = None if progress is None else lambda done, total: progress("members measured for tau", done, total)
        tau = _tau(through, k, delta, stage)
        return cls(through, tau.value, k, delta, metric, tau.members, (tau.low, tau.high))

    @property
    def states(self) -> Tensor:
        """The bank [n, d] as one matrix: all of it in memory."""
        parts = self._exact.parts
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def _exact(self) -> Exact:
        return self.search.exact if isinstance(self.search, Approximate) else self.search

    @property
    def error(self) -> SearchError | None:
        """Of distances that an index found; None: they are exact."""
        return self.search.error if isinstance(self.search, Approximate) else None

    def distances(self, states: Tensor) -> Tensor:
        """d_k [n] of states [n, d] from elsewhere."""
        return self.search.nearest(states, self.k)[0].mean(-1).to(self.search.wide)

    def centres(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """d_k [n] of states [n, d], and the mean [n, d] of the k members that are nearest to each."""
        apart, which = self.search.nearest(states, self.k)
        near = self._exact.rows(which.flatten()).to(self.search.wide)  # [n k, d]
        return apart.mean(-1).to(self.search.wide), near.view(*which.shape, -1).mean(1)

    def to_json(self) -> dict[str, Any]:
        """For a run's plan."""
        told = {"tau": self.tau, "k": self.k, "delta": self.delta, "bank": len(self.search), "metric": self.metric}
        told |= {"members": self.members, "interval": list(self.interval)}
        if self.error is None:
            return {**told, "search": "exact"}
        return {**told, "search": "approximate", "error": asdict(self.error)}


def check_search(search: str) -> None:
    """Refuse an unknown one, and one whose package is not here, before a bank is collected for it."""
    if search not in SEARCHES:
        raise SettingError(f"search={search!r}: choose from {', '.join(SEARCHES)}")
    if search == "approximate":
        check_index()


def _suits_an_index(search: Exact) -> bool:
    """Whether an index is worth building; says so where it cannot be."""
    if search.device.type != "cpu" or len(search) * search.width <= _LARGE:
        return False
    if find_spec("faiss") is None:
        size = f"{len(search)} states of width {search.width}"
        warnings.warn(f'{size} are searched exactly: pip install "mgap[neighbours]" for an index is quicker', stacklevel=3)
        return False
    return True
