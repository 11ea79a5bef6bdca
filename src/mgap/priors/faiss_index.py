"""Nearly all of the nearest states in a large bank, without a GPU: FAISS finds candidates, differences decide among them.

Codes of 8 bits for up to 256 principal directions, in about sqrt(n) cells (inverted lists), of which the nearest are looked
through: as many as it takes to find 99% of the neighbours of 128 members. The candidates' distances are exact, so d_k is never
too small; how much it is too large is measured on 256 other members, by exact search, each time an index is built. That is
said of members: a state far from all of them has neighbours in more cells.

Memory: 256 bytes a state (8 for its row), whatever the bank's width and dtype, and a block of it in float32. All draws have
seeds: on one machine with one number of threads an index is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mgap.errors import SettingError, require_extra
from mgap.priors.neighbours import Exact, Progress, blocks, check

FEWEST = 1000  # states: fewer are searched exactly in no time
FOUND = 0.99  # of the members' neighbours
_DIRECTIONS = 256
_A_CELL = 40  # states that each cell's centre is fitted to
_TUNED, _TESTED = 128, 256  # members
_ROWS = 4096  # at a time
_SEED = 1

Told = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(frozen=True)
class SearchError:
    """What an index misses, measured on members of the bank."""

    queries: int
    found: float  # share of the k nearest
    mean: float  # relative error of d_k
    worst: float


def check_index() -> None:
    """Refuse where FAISS is not installed."""
    require_extra("faiss-cpu", "neighbours", "search='approximate'", module="faiss")


@dataclass(frozen=True)
class Approximate:
    """Search through an index of a bank. Made by `of`."""

    exact: Exact
    index: Any  # FAISS's
    rotation: Any  # FAISS's, into the principal directions; None: the states are narrow
    error: SearchError

    @classmethod
    def of(cls, exact: Exact, k: int, told: Told | None = None) -> Approximate:
        """Build it, and look through as many cells as k neighbours take."""
        check_index()
        import faiss

        check(None, exact, k)
        if exact.device.type != "cpu":
            raise SettingError("search='approximate' is for the CPU: on a GPU use search='exact'")
        if len(exact) < FEWEST:
            raise SettingError(f"search='approximate' needs {FEWEST} states, not {len(exact)}: use search='exact'")
        width, rotation = min(exact.width, _DIRECTIONS), None
        if exact.width > width:
            rotation = faiss.PCAMatrix(exact.width, width)
            rotation.train(_seen(exact, exact.rows(drawn(len(exact), 8 * width, _SEED))))
        cells = 2 ** round(torch.tensor(len(exact)).log2().item() / 2)
        coarse = faiss.IndexFlatL2(width)
        index = faiss.IndexIVFScalarQuantizer(coarse, width, cells, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2)
        index.cp.niter, index.cp.seed, index.cp.min_points_per_centroid = 10, _SEED, 1
        made = cls(exact, index, rotation, SearchError(0, 0.0, 0.0, 0.0))
        sample = drawn(len(exact), cells * _A_CELL, _SEED)
        some = [made._codes(exact.rows(rows)) for rows in sample.split(_ROWS)]
        index.train(torch.cat([torch.from_numpy(codes) for codes in some]).numpy())
        for start, block in blocks(exact.parts, _ROWS):
            index.add(made._codes(block))
            if told is not None:
                told("states put into an index", start + len(block), len(exact))
        return cls(exact, index, rotation, made._tune(k, told))

    def _tune(self, k: int, told: Told | None) -> SearchError:
        members = drawn(len(self), _TUNED + _TESTED, _SEED)
        members = members[torch.randperm(len(members), generator=torch.Generator().manual_seed(_SEED))]
        stage = None if told is None else lambda done, total: told("members searched for exactly", done, total)
        truth, _ = self.exact.among(members, k, progress=stage)
        tuned, tested = members[:_TUNED], members[_TUNED:]
        self.index.nprobe = max(1, self.index.nlist // 32)
        while self._error(tuned, truth[:_TUNED]).found < FOUND and self.index.nprobe < self.index.nlist:
            self.index.nprobe = min(2 * self.index.nprobe, self.index.nlist)
        return self._error(tested, truth[_TUNED:])

    def _error(self, members: Tensor, truth: Tensor) -> SearchError:
        """`truth`: distances of the nearest [n, k]. A state as near as the k-th is a neighbour found, whichever it is."""
        near, _ = self.among(members, truth.shape[1])
        found = (near <= truth[:, -1:] * (1 + 1e-6)).double().mean()
        right = truth.mean(-1)
        off = ((near.mean(-1) - right) / right.clamp_min(torch.finfo(torch.float32).tiny)).clamp_min(0)
        return SearchError(len(members), float(found), float(off.mean()), float(off.max()))

    def __len__(self) -> int:
        return len(self.exact)

    @property
    def wide(self) -> torch.dtype:
        return self.exact.wide

    def nearest(self, states: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """Distances [n, k] in float64, ascending, of states [n, d] that are not members, and which states they are [n, k]."""
        check(states, self.exact, k)
        return self._in_turns(len(states), k, lambda some: (states[some].to("cpu", self.wide), None), progress)

    def among(self, members: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """The same for members of the bank, given as rows [n]: none is its own neighbour, nor one of its group."""
        check(None, self.exact, k)
        return self._in_turns(len(members), k, lambda some: (self.exact.rows(members[some]), members[some]), progress)

    def _in_turns(
        self, count: int, k: int, read: Callable[[slice], tuple[Tensor, Tensor | None]], progress: Progress | None
    ) -> tuple[Tensor, Tensor]:
        """`read` gives states, and which members they are."""
        apart, which = torch.empty(count, k, dtype=torch.float64), torch.empty(count, k, dtype=torch.long)
        for start in range(0, count, _ROWS // 8):
            some = slice(start, min(start + _ROWS // 8, count))
            states, own = read(some)
            kin = 0 if own is None else self.exact.largest_group
            _, rows = self.index.search(self._codes(states), min(len(self), max(5 * k, 50) + kin))
            groups = None if own is None else self.exact.groups[own]
            near, which[some] = self.exact.closest(states, torch.from_numpy(rows), k, groups)
            apart[some] = self.exact.measured(near)
            short = near[:, -1].isinf().nonzero().squeeze(1)  # the cells looked through held fewer than k
            if len(short):
                again = self.exact.nearest(states[short], k) if own is None else self.exact.among(own[short], k)
                apart[start + short], which[start + short] = again
            if progress is not None:
                progress(some.stop, count)
        return apart, which

    def _codes(self, states: Tensor) -> Any:
        """What is indexed of states: an array [n, 256 or less]."""
        seen = _seen(self.exact, states)
        return seen if self.rotation is None else self.rotation.apply(seen)


def _seen(exact: Exact, states: Tensor) -> Any:
    return exact.placed(states, torch.float32).numpy()


def drawn(count: int, wanted: int, seed: int) -> Tensor:
    """Rows of so many states, in order: all, or this many of them at random."""
    if wanted >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:wanted].sort().values
