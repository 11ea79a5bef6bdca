"""How far a state is from those of normal decoding (paper, section 3.2): the mean distance to its k nearest in a bank.

    d_k(h; S) = 1/k sum over the k nearest s in S of |h - s|,   departure: d_k > tau,   tau = (1 - delta) quantile of d_k over S

A member of the bank is never its own neighbour, and neither are other tokens of its answer, because judged states come from
other answers too. An equal state elsewhere in the bank is. Distances are exact (priors/neighbours.py) and computed where the
bank is, on the GPU if it is there. For large banks on a CPU an index can search instead (priors/faiss_index.py); its error is
measured and stored. tau is taken over all members of a bank of up to 10,000 states; of a larger bank, over 10,000 drawn with
seed 0, each against the whole bank. The paper prints neither k nor delta; its table has 150 of 3000 plain states beyond tau,
which means delta 0.05.
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
from mgap.io.progress import Progress as StageProgress
from mgap.priors.bank import Bank
from mgap.priors.faiss_index import ApproximateSearch, SearchError, check_index, sample_rows
from mgap.priors.neighbours import METRICS, ExactSearch, Parts, Progress

__all__ = ["METRICS", "SEARCHES", "Manifold", "check_search", "member_distances", "neighbour_distances", "threshold"]

SEARCHES = ("auto", "exact", "approximate")
MEMBERS = 10_000  # tau is taken over at most this many
_LARGE = 1 << 29  # numbers in a bank; beyond this, an exact tau takes minutes on two cores
_SEED = 0


def neighbour_distances(states: Tensor, bank: Parts, k: int = 10, metric: str = "euclidean") -> Tensor:
    """d_k [n] of states [n, d] from outside the bank [m, d], which may be in parts."""
    search = ExactSearch.of(bank, metric)
    return search.nearest(states, k)[0].mean(-1).to(search.distance_dtype)


def member_distances(bank: Parts, k: int = 10, metric: str = "euclidean") -> Tensor:
    """d_k [m] of every member of the bank [m, d] among the others."""
    search = ExactSearch.of(bank, metric)
    return search.nearest_to_members(torch.arange(len(search)), k)[0].mean(-1).to(search.distance_dtype)


def threshold(bank: Parts, k: int = 10, delta: float = 0.05, metric: str = "euclidean") -> float:
    """tau: the distance that a share delta of the bank's own members exceeds."""
    return _tau(ExactSearch.of(bank, metric), k, delta).value


def _tau(search: ExactSearch | ApproximateSearch, k: int, delta: float, progress: Progress | None = None) -> Tau:
    if not 0 < delta < 1:
        raise SettingError(f"delta={delta} must be between 0 and 1: the share of plain states that count as departed")
    members = sample_rows(len(search), MEMBERS, _SEED)
    distances = search.nearest_to_members(members, k, progress=progress)[0].mean(-1).to(search.distance_dtype)
    return Tau(float(torch.quantile(distances, 1 - delta)), *interval(distances, 1 - delta), len(members))


class Tau(NamedTuple):
    """The threshold, its 95% interval, and the number of members it was taken over."""

    value: float
    low: float
    high: float | None
    members: int


def interval(values: Tensor, share: float) -> tuple[float, float | None]:
    """A 95% interval for the quantile `share` of the distribution that n values were drawn from; None: above them all.

    The number of values below the quantile is binomial; the bounds are the values at the ranks that cut off 2.5% on each side.
    """
    n, ordered = len(values), values.sort().values
    below = torch.arange(n + 1, dtype=torch.float64)
    log_ways = math.lgamma(n + 1) - torch.lgamma(below + 1) - torch.lgamma(n - below + 1)
    up_to = (log_ways + below * math.log(share) + (n - below) * math.log1p(-share)).exp().cumsum(0)
    low, high = int((up_to <= 0.025).sum()), int((up_to < 0.975).sum()) + 1  # ranks, from 1
    return float(ordered[low - 1]) if low else 0.0, float(ordered[high - 1]) if high <= n else None


@dataclass(frozen=True)
class Manifold:
    """A searchable bank with a number of neighbours, a metric, and the distance beyond which a state has departed."""

    search: ExactSearch | ApproximateSearch
    tau: float
    k: int
    delta: float
    metric: str
    members: int  # tau is taken over this many
    interval: tuple[float, float | None]  # 95%, of tau, if the bank's states are independent draws

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
        progress: StageProgress | None = None,
    ) -> Manifold:
        """`device` is where to compute; None: where the bank is. `progress` is called with a label, done and total.

        `search` is exact, approximate (an index; needs FAISS), or auto: exact, except for banks of more than 2^29 numbers
        (131,072 states of width 4096) on a CPU with FAISS installed.
        """
        check_search(search)
        exact = ExactSearch.of(bank.parts, metric, device, bank.rows)
        use_index = search == "approximate" or (search == "auto" and _suits_an_index(exact))
        chosen = ApproximateSearch.of(exact, k, progress) if use_index else exact
        stage = None if progress is None else lambda done, total: progress("members measured for tau", done, total)
        tau = _tau(chosen, k, delta, stage)
        return cls(chosen, tau.value, k, delta, metric, tau.members, (tau.low, tau.high))

    @property
    def states(self) -> Tensor:
        """The bank as one matrix [n, d] in memory."""
        parts = self._exact.parts
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def _exact(self) -> ExactSearch:
        return self.search.exact if isinstance(self.search, ApproximateSearch) else self.search

    @property
    def error(self) -> SearchError | None:
        """The error of an index's distances; None: they are exact."""
        return self.search.error if isinstance(self.search, ApproximateSearch) else None

    def distances(self, states: Tensor) -> Tensor:
        """d_k [n] of states [n, d] from outside the bank."""
        return self.search.nearest(states, self.k)[0].mean(-1).to(self.search.distance_dtype)

    def centres(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """d_k [n] of states [n, d], and the mean [n, d] of each one's k nearest members."""
        distances, rows = self.search.nearest(states, self.k)
        members = self._exact.rows(rows.flatten()).to(self.search.distance_dtype)  # [n k, d]
        return distances.mean(-1).to(self.search.distance_dtype), members.view(*rows.shape, -1).mean(1)

    def to_json(self) -> dict[str, Any]:
        """For a run's plan."""
        about = {"tau": self.tau, "k": self.k, "delta": self.delta, "bank": len(self.search), "metric": self.metric}
        about |= {"members": self.members, "interval": list(self.interval)}
        if self.error is None:
            return {**about, "search": "exact"}
        return {**about, "search": "approximate", "error": asdict(self.error)}


def check_search(search: str) -> None:
    """Refuse an unknown search, or one whose package is not installed, before a bank is collected."""
    if search not in SEARCHES:
        raise SettingError(f"search={search!r}: choose from {', '.join(SEARCHES)}")
    if search == "approximate":
        check_index()


def _suits_an_index(search: ExactSearch) -> bool:
    """Whether an index is worth building; warns if it is but FAISS is not installed."""
    if search.device.type != "cpu" or len(search) * search.width <= _LARGE:
        return False
    if find_spec("faiss") is None:
        size = f"{len(search)} states of width {search.width}"
        warnings.warn(f'{size} are searched exactly: pip install "mgap[neighbours]" for an index is quicker', stacklevel=3)
        return False
    return True
