"""Approximate nearest neighbours in a large bank, on the CPU: FAISS finds candidates, exact distances rank them.

The index stores 8-bit codes for up to 256 principal directions in about sqrt(n) cells (inverted lists). A search probes the
nearest cells: as many as it takes to find 99% of the neighbours of 128 members. The candidates' distances are exact, so d_k is
never too small. How much too large it is, is measured on 256 other members, by exact search, each time an index is built. This
holds for members: a state far from all of them has neighbours in more cells.

Memory: 256 bytes per state (8 for its row), whatever the bank's width and dtype, and one block of the bank in float32. All
draws are seeded: on one machine with one number of threads, an index is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mgap.errors import SettingError, require_extra
from mgap.io.progress import Progress as StageProgress
from mgap.priors.neighbours import ExactSearch, Progress, blocks, check_query

MIN_STATES = 1000  # exact search through fewer takes no time
TARGET_RECALL = 0.99  # share of the members' neighbours
_DIRECTIONS = 256
_STATES_PER_CELL = 40  # to fit the cells' centres
_TUNING_MEMBERS, _TEST_MEMBERS = 128, 256
_ROWS = 4096  # at a time
_SEED = 1


@dataclass(frozen=True)
class SearchError:
    """The error of an index, measured on members of the bank."""

    queries: int
    found: float  # recall: share of the k nearest
    mean: float  # relative error of d_k
    worst: float


def check_index() -> None:
    """Refuse if FAISS is not installed."""
    require_extra("faiss-cpu", "neighbours", "search='approximate'", module="faiss")


@dataclass(frozen=True)
class ApproximateSearch:
    """Search through an index of a bank. Built by `of`."""

    exact: ExactSearch
    index: Any  # FAISS index
    rotation: Any  # FAISS transform to the principal directions; None: the states are narrow enough
    error: SearchError

    @classmethod
    def of(cls, exact: ExactSearch, k: int, progress: StageProgress | None = None) -> ApproximateSearch:
        """Build the index, and choose how many cells to probe for k neighbours."""
        check_index()
        import faiss

        check_query(None, exact, k)
        if exact.device.type != "cpu":
            raise SettingError("search='approximate' is for the CPU: on a GPU use search='exact'")
        if len(exact) < MIN_STATES:
            raise SettingError(f"search='approximate' needs {MIN_STATES} states, not {len(exact)}: use search='exact'")
        width, rotation = min(exact.width, _DIRECTIONS), None
        if exact.width > width:
            rotation = faiss.PCAMatrix(exact.width, width)
            rotation.train(_centred(exact, exact.rows(sample_rows(len(exact), 8 * width, _SEED))))
        cells = 2 ** round(torch.tensor(len(exact)).log2().item() / 2)
        coarse = faiss.IndexFlatL2(width)
        index = faiss.IndexIVFScalarQuantizer(coarse, width, cells, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2)
        index.cp.niter, index.cp.seed, index.cp.min_points_per_centroid = 10, _SEED, 1
        search = cls(exact, index, rotation, SearchError(0, 0.0, 0.0, 0.0))
        sample = sample_rows(len(exact), cells * _STATES_PER_CELL, _SEED)
        codes = [torch.from_numpy(search._codes(exact.rows(rows))) for rows in sample.split(_ROWS)]
        index.train(torch.cat(codes).numpy())
        for start, block in blocks(exact.parts, _ROWS):
            index.add(search._codes(block))
            if progress is not None:
                progress("states put into an index", start + len(block), len(exact))
        return cls(exact, index, rotation, search._tune(k, progress))

    def _tune(self, k: int, progress: StageProgress | None) -> SearchError:
        """Probe more cells until the recall is reached; returns the error on other members."""
        members = sample_rows(len(self), _TUNING_MEMBERS + _TEST_MEMBERS, _SEED)
        members = members[torch.randperm(len(members), generator=torch.Generator().manual_seed(_SEED))]
        stage = None if progress is None else lambda done, total: progress("members searched for exactly", done, total)
        truth, _ = self.exact.nearest_to_members(members, k, progress=stage)
        tuning, test = members[:_TUNING_MEMBERS], members[_TUNING_MEMBERS:]
        self.index.nprobe = max(1, self.index.nlist // 32)
        while self._error(tuning, truth[:_TUNING_MEMBERS]).found < TARGET_RECALL and self.index.nprobe < self.index.nlist:
            self.index.nprobe = min(2 * self.index.nprobe, self.index.nlist)
        return self._error(test, truth[_TUNING_MEMBERS:])

    def _error(self, members: Tensor, truth: Tensor) -> SearchError:
        """`truth`: exact distances of the nearest [n, k]. Any state as near as the k-th counts as a neighbour found."""
        distances, _ = self.nearest_to_members(members, truth.shape[1])
        recall = (distances <= truth[:, -1:] * (1 + 1e-6)).double().mean()
        exact = truth.mean(-1)
        error = ((distances.mean(-1) - exact) / exact.clamp_min(torch.finfo(torch.float32).tiny)).clamp_min(0)
        return SearchError(len(members), float(recall), float(error.mean()), float(error.max()))

    def __len__(self) -> int:
        return len(self.exact)

    @property
    def distance_dtype(self) -> torch.dtype:
        return self.exact.distance_dtype

    def nearest(self, states: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """The k nearest members of states [n, d] from outside the bank: distances in float64, ascending, and rows, [n, k]."""
        check_query(states, self.exact, k)
        return self._in_batches(len(states), k, lambda part: (states[part].to("cpu", self.distance_dtype), None), progress)

    def nearest_to_members(self, members: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """The same for members of the bank, given as rows [n]; a member's own group is excluded."""
        check_query(None, self.exact, k)
        return self._in_batches(len(members), k, lambda part: (self.exact.rows(members[part]), members[part]), progress)

    def _in_batches(
        self, count: int, k: int, read: Callable[[slice], tuple[Tensor, Tensor | None]], progress: Progress | None
    ) -> tuple[Tensor, Tensor]:
        """`read` returns the states of a slice, and their rows if they are members."""
        distances, rows = torch.empty(count, k, dtype=torch.float64), torch.empty(count, k, dtype=torch.long)
        for start in range(0, count, _ROWS // 8):
            part = slice(start, min(start + _ROWS // 8, count))
            states, members = read(part)
            excluded = 0 if members is None else self.exact.largest_group
            _, candidates = self.index.search(self._codes(states), min(len(self), max(5 * k, 50) + excluded))
            groups = None if members is None else self.exact.groups[members]
            near, rows[part] = self.exact.nearest_candidates(states, torch.from_numpy(candidates), k, groups)
            distances[part] = self.exact.to_metric(near)
            short = near[:, -1].isinf().nonzero().squeeze(1)  # the probed cells held fewer than k
            if len(short):
                exact = self.exact
                again = exact.nearest(states[short], k) if members is None else exact.nearest_to_members(members[short], k)
                distances[start + short], rows[start + short] = again
            if progress is not None:
                progress(part.stop, count)
        return distances, rows

    def _codes(self, states: Tensor) -> Any:
        """The indexed vectors of states: an array [n, at most 256]."""
        centred = _centred(self.exact, states)
        return centred if self.rotation is None else self.rotation.apply(centred)


def _centred(exact: ExactSearch, states: Tensor) -> Any:
    return exact.centred(states, torch.float32).numpy()


def sample_rows(count: int, size: int, seed: int) -> Tensor:
    """`size` of `count` rows at random, in ascending order; all of them if there are no more."""
    if size >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:size].sort().values
