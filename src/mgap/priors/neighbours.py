"""Exact nearest neighbours in a bank, with bounded memory: float32 products find candidates, float64 differences decide.

|h - s|^2 = |h|^2 + |s|^2 - 2 h.s, taken relative to a point amid the bank, costs one matrix product per block, but is rounded.
So the search keeps more than k candidates, recomputes their distances from differences in float64, and proves the choice.

    computed    a = fl(|s|^2 - 2 h.s),   |a - (|s|^2 - 2 h.s)| <= E = 2 g |s| (|s| + |h|) + underflow
    g           n u / (1 - n u), n = columns summed in a row + blocks of columns + 4, u = 2^-24 (Higham, 2002, section 3.1)
    |s|         at most |h| + t where t is the k-th distance found: a state farther from the centre is farther from h than t
    proved      sqrt(a_last + |h|^2 - E) - u (|h| + |s|), the least distance of a state that is no candidate, is at least t

A query without a proof is searched again with float64 products (u = 2^-53), and then by differences. Distances are those of
the k nearest up to a relative 2^-23: of two states equally far, to that precision, either may be returned.

Memory: a block of the bank in the precision of the search (64 MiB in float32), queries (128 MiB), products (64 MiB), and
temporary copies of them. A bank on the CPU is copied to the GPU if it takes at most half of the free memory there, else it is
moved block by block. TF32 and autocast are switched off during the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from mgap.errors import NonFiniteStates, SettingError

METRICS = ("euclidean", "cosine")
Parts = Tensor | Sequence[Tensor]  # a bank [n, d], or its parts [n_i, d]
Progress = Callable[[int, int], None]  # queries done, total
Tick = Callable[[int], None]  # states of the bank searched so far

_BLOCK = 1 << 24  # numbers of the bank at a time
_QUERIES = 1 << 25  # numbers of the queries at a time
_PRODUCTS = 1 << 24
_GATHERED = 1 << 21  # numbers of candidates, in float64
_COLUMNS = 256  # summed in a row: fewer make the bound tighter
_MARGIN = 16  # candidates beyond k, or k if that is more
_ROUNDING = 2.0**-23  # relative error allowed in a distance


@dataclass(frozen=True)
class ExactSearch:
    """Search through all of a bank."""

    parts: tuple[Tensor, ...]  # [n_i, d], of one dtype, on one device
    metric: str
    device: torch.device  # where to compute
    groups: Tensor  # [n]; members of one group are not neighbours of each other

    @classmethod
    def of(
        cls,
        bank: Parts,
        metric: str = "euclidean",
        device: torch.device | str | None = None,
        groups: Tensor | None = None,
    ) -> ExactSearch:
        """`device` is where to compute; None: where the bank is. `groups` [n] marks states that belong together, such as the
        tokens of one answer; None: each state is its own group.
        """
        if metric not in METRICS:
            raise SettingError(f"metric={metric!r}: choose from {', '.join(METRICS)}")
        parts = (bank,) if isinstance(bank, Tensor) else tuple(bank)
        if not parts or any(part.ndim != 2 or 0 in part.shape for part in parts):
            raise SettingError(f"a bank is states [n, d], not {[list(part.shape) for part in parts]}: give some rows")
        kinds = {(part.shape[1], part.dtype, part.device) for part in parts}
        if len(kinds) > 1:
            raise SettingError("parts of a bank must have one width, dtype and device: make them alike")
        target = parts[0].device if device is None else torch.device(device)
        if target.type == "mps":
            target = torch.device("cpu")  # MPS has no float64
        if target.type == "cuda" and parts[0].device.type == "cpu":
            size = sum(part.numel() * part.element_size() for part in parts)
            if 2 * size <= torch.cuda.mem_get_info(target)[0]:
                parts = tuple(part.to(target) for part in parts)
        count = sum(map(len, parts))
        if groups is not None and groups.shape != (count,):
            raise SettingError(f"groups {list(groups.shape)} for {count} states: name the group of each")
        return cls(parts, metric, target, torch.arange(count) if groups is None else groups.long().cpu())

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def width(self) -> int:
        return self.parts[0].shape[1]

    @property
    def distance_dtype(self) -> torch.dtype:
        """The dtype in which callers report distances."""
        return torch.float64 if self.parts[0].dtype == torch.float64 else torch.float32

    @cached_property
    def centre(self) -> Tensor:
        """A point amid the bank [d], the mean of up to 4096 of its states; float64, rounded to float32's digits."""
        sample = self.rows(torch.arange(0, len(self), -(-len(self) // 4096)))
        return self.metric_vectors(sample).mean(0).float().double()

    def nearest(self, states: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """The k nearest members of states [n, d] from outside the bank: distances in float64, ascending, and rows, [n, k]."""
        check_query(states, self, k)
        return self._in_batches(len(states), k, lambda part: (states[part].to(self.distance_dtype), None), progress)

    def nearest_to_members(self, members: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """The same for members of the bank, given as rows [n]. A member's own group is excluded; an equal state in another
        group is not.
        """
        check_query(None, self, k)
        return self._in_batches(len(members), k, lambda part: (self.rows(members[part]), self.groups[members[part]]), progress)

    @cached_property
    def largest_group(self) -> int:
        return int(self.groups.unique(return_counts=True)[1].max())

    def _in_batches(
        self, count: int, k: int, read: Callable[[slice], tuple[Tensor, Tensor | None]], progress: Progress | None
    ) -> tuple[Tensor, Tensor]:
        """`read` returns the queries of a slice, and their groups if they are members."""
        size, all_distances, all_rows = max(1, _QUERIES // self.width), list[Tensor](), list[Tensor]()
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))

            def tick(searched: int, part: slice = part) -> None:
                if progress is not None:
                    progress(part.start + (part.stop - part.start) * searched // len(self), count)

            queries, groups = read(part)
            with full_precision(self.device):
                groups = None if groups is None else groups.to(self.device)
                distances, rows = self._nearest(queries.to(self.device), k, groups, tick)
            all_distances.append(self.to_metric(distances))
            all_rows.append(rows)
            if progress is not None:
                progress(part.stop, count)
        if not all_distances:
            empty = torch.empty(0, k, device=self.device)
            return empty.double(), empty.long()
        return torch.cat(all_distances), torch.cat(all_rows)

    def _nearest(self, queries: Tensor, k: int, groups: Tensor | None, tick: Tick) -> tuple[Tensor, Tensor]:
        distances = torch.empty(len(queries), k, dtype=torch.float64, device=self.device)
        rows = torch.empty(len(queries), k, dtype=torch.long, device=self.device)
        unproved = torch.arange(len(queries), device=self.device)
        keep = min(len(self), k + max(k, _MARGIN) + (groups is not None))
        for dtype in (torch.float32, torch.float64):
            part, own = queries[unproved], None if groups is None else groups[unproved]
            last, candidates = self._candidates(part, keep, own, dtype, tick if dtype == torch.float32 else _silent)
            distances[unproved], rows[unproved] = self.nearest_candidates(part, candidates, k, own)
            proved = self._is_proved(part, distances[unproved, -1], last, dtype)
            unproved = unproved[~proved] if keep < len(self) else unproved[:0]  # all were candidates
            if not len(unproved):
                return distances, rows
        own = None if groups is None else groups[unproved]
        distances[unproved], rows[unproved] = self._by_differences(queries[unproved], k, own)
        return distances, rows

    def _candidates(
        self, queries: Tensor, keep: int, groups: Tensor | None, dtype: torch.dtype, tick: Tick
    ) -> tuple[Tensor, Tensor]:
        """The states with the least a = |s|^2 - 2 h.s: the largest a among them [n], and their rows [n, keep]."""
        h = self.centred(queries, dtype)  # [n, d]
        best, rows = h.new_empty(len(h), 0), torch.empty(len(h), 0, dtype=torch.long, device=self.device)
        for start, block in blocks(self.parts, max(1, _BLOCK // self.width)):
            members = self.centred(block, dtype)  # [b, d]
            norms = _norms(members)
            size, merged = max(1, _PRODUCTS // len(members)), list[tuple[Tensor, Tensor]]()
            for first in range(0, len(h), size):
                part = slice(first, first + size)
                a = _products(h[part], members, norms)  # [part, b]
                if groups is not None:
                    self._mask_own_group(a, groups[part], start)
                least, at = a.topk(min(keep, len(members)), largest=False)
                least, at = torch.cat((best[part], least), 1), torch.cat((rows[part], at + start), 1)
                least, order = least.topk(min(keep, least.shape[1]), largest=False)
                merged.append((least, at.gather(1, order)))
            best, rows = (torch.cat(column) for column in zip(*merged, strict=True))
            tick(start + len(block))
        return best[:, -1].double(), rows

    def nearest_candidates(
        self, queries: Tensor, candidates: Tensor, k: int, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k nearest of candidates [n, c] to each query [n, d], from differences: distances and rows. Row -1 is none."""
        distances = torch.empty(candidates.shape, dtype=torch.float64, device=self.device)
        size = max(1, _GATHERED // (candidates.shape[1] * self.width))
        for first in range(0, len(queries), size):
            part = candidates[first : first + size]
            members = self.metric_vectors(self.rows(part.clamp_min(0).flatten())).unflatten(0, part.shape)  # [part, c, d]
            members -= self.metric_vectors(queries[first : first + size]).unsqueeze(1)
            distances[first : first + size] = torch.linalg.vector_norm(members, dim=-1)
        distances[candidates < 0] = torch.inf
        if groups is not None:
            same = self.groups.to(candidates.device)[candidates.clamp_min(0)] == groups.unsqueeze(1)
            distances[same] = torch.inf
        distances, order = distances.topk(k, largest=False)
        return distances, candidates.gather(1, order)

    def _is_proved(self, queries: Tensor, t: Tensor, last: Tensor, dtype: torch.dtype) -> Tensor:
        """Whether no state outside the candidates is nearer than t [n]; `last` [n] is the largest a of a candidate."""
        h = torch.linalg.vector_norm(self.centred(queries, dtype), dim=-1, dtype=torch.float64)
        u = torch.finfo(dtype).eps / 2
        s = t + h + 4 * u * (h + t)  # a state farther from the centre is farther than t from h
        least = (last + h.square() - error_bound(h, s, self.width, dtype)).clamp_min(0).sqrt() - 2 * u * (h + s)
        fits = s.square() * 8 < torch.finfo(dtype).max  # nothing overflowed
        proved: Tensor = (t == 0) | ((least >= t * (1 - _ROUNDING)) & fits)
        return proved

    def _by_differences(self, queries: Tensor, k: int, groups: Tensor | None) -> tuple[Tensor, Tensor]:
        h = self.metric_vectors(queries)
        best, best_rows = h.new_empty(len(h), 0), torch.empty(len(h), 0, dtype=torch.long, device=self.device)
        size = max(1, min(_BLOCK // self.width, _PRODUCTS // len(h)))
        for start, block in blocks(self.parts, size):
            distances = torch.cdist(h, self.metric_vectors(block), compute_mode="donot_use_mm_for_euclid_dist")
            if groups is not None:
                self._mask_own_group(distances, groups, start)
            rows = torch.arange(start, start + len(block), device=self.device).expand_as(distances)
            least, order = torch.cat((best, distances), 1).topk(min(k, best.shape[1] + len(block)), largest=False)
            best, best_rows = least, torch.cat((best_rows, rows), 1).gather(1, order)
        return best, best_rows

    def _mask_own_group(self, scores: Tensor, groups: Tensor, start: int) -> None:
        """Set scores [n, b] of members in the query's own group to infinity; the block's states begin at row `start`."""
        block = self.groups[start : start + scores.shape[1]].to(scores.device)
        scores.masked_fill_(block == groups.unsqueeze(1), torch.inf)

    def rows(self, rows: Tensor) -> Tensor:
        """These states of the bank [n, d], in its own dtype."""
        rows = rows.to(self.parts[0].device)
        if len(self.parts) == 1:
            return self.parts[0][rows]
        states, start = self.parts[0].new_empty(len(rows), self.width), 0
        for part in self.parts:
            inside = (rows >= start) & (rows < start + len(part))
            states[inside] = part[rows[inside] - start]
            start += len(part)
        return states

    def metric_vectors(self, states: Tensor) -> Tensor:
        """The vectors that are compared, in float64 on the computing device: states, or their directions."""
        states = states.to(self.device, torch.float64)
        return directions(states) if self.metric == "cosine" else states

    def to_metric(self, distances: Tensor) -> Tensor:
        """Distances in the metric, from Euclidean ones between `metric_vectors`."""
        return distances.square() / 2 if self.metric == "cosine" else distances  # |a - b|^2 / 2 = 1 - cos of unit vectors

    def centred(self, states: Tensor, dtype: torch.dtype) -> Tensor:
        """States relative to the centre; the difference is rounded once."""
        if self.metric == "euclidean" and dtype == self.distance_dtype == torch.float32:
            return states.to(self.device, dtype) - self.centre.to(dtype)
        return (self.metric_vectors(states) - self.centre).to(dtype)


def error_bound(h: Tensor, s: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """The largest error of a, computed for a query at distance |h| from the centre and a member at distance |s|."""
    u, tiny = torch.finfo(dtype).eps / 2, torch.finfo(dtype).tiny
    n = min(width, _COLUMNS) + -(-width // _COLUMNS) + 4
    return 2 * (n * u / (1 - n * u)) * s * (s + h) + 8 * width * tiny


def check_query(states: Tensor | None, search: ExactSearch, k: int) -> None:
    """Refuse a search that has no answer. With states None, the queries are members of the bank."""
    others = len(search) - (search.largest_group if states is None else 0)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= others:
        raise SettingError(f"k={k!r} must be a whole number from 1 to {others}, the other states in the bank: collect more")
    if states is None:
        return
    if states.ndim != 2 or states.shape[1] != search.width:
        raise SettingError(f"states {list(states.shape)} are not of the bank's width: give [n, {search.width}]")
    if not states.isfinite().all():
        raise NonFiniteStates("some states are NaN or infinite: load the model with dtype float32")


def directions(states: Tensor) -> Tensor:
    """Unit vectors; refuses a state of zeros."""
    if (states == 0).all(-1).any():
        raise SettingError("a state of zeros has no direction: use metric=euclidean")
    return F.normalize(states, dim=-1, eps=0.0)


def blocks(parts: Sequence[Tensor], size: int) -> Iterator[tuple[int, Tensor]]:
    """Up to `size` states at a time, with the row of the first."""
    start = 0
    for part in parts:
        for block in part.split(size):
            yield start, block
            start += len(block)


def _norms(members: Tensor) -> Tensor:
    return torch.stack([torch.linalg.vecdot(columns, columns) for columns in members.split(_COLUMNS, 1)]).sum(0)  # [b]


def _products(queries: Tensor, members: Tensor, norms: Tensor) -> Tensor:
    """a = |s|^2 - 2 h.s [n, b], summed over blocks of columns."""
    pairs = list(zip(queries.split(_COLUMNS, 1), members.split(_COLUMNS, 1), strict=True))
    a = torch.addmm(norms, pairs[0][0], pairs[0][1].T, alpha=-2)
    for h, s in pairs[1:]:
        a.addmm_(h, s.T, alpha=-2)
    return a


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute float32 products in full float32 precision, whatever the process has set."""
    settings = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]  # it is a property
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False), torch.no_grad():
            yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def _silent(_searched: int) -> None:
    pass
