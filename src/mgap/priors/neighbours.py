"""The nearest states in a bank, exactly: float32 products look for candidates, differences decide, nothing large is held.

|h - s|^2 = |h|^2 + |s|^2 - 2 h.s, seen from a point amid the bank, costs one matrix product a block, but is rounded. So more
than k candidates are kept, their distances are taken again from differences in float64, and the choice has to be proved.

    computed    a = fl(|s|^2 - 2 h.s),   |a - (|s|^2 - 2 h.s)| <= E = 2 g |s| (|s| + |h|) + underflow
    g           n u / (1 - n u), n = columns summed in a row + blocks of columns + 4, u = 2^-24 (Higham, 2002, section 3.1)
    |s|         at most |h| + t where t is the k-th distance found: a state farther from the centre is farther from h than t
    proved      sqrt(a_last + |h|^2 - E) - u (|h| + |s|), the least distance of a state that was not kept, is at least t

A row that is not proved is searched again with float64 products (u = 2^-53), and then by differences. Distances are those of
the k nearest up to a relative 2^-23: of two states equally far, to that precision, either may be named.

Memory: a block of the bank in the precision searched with (64 MiB in float32), queries (128 MiB) and products (64 MiB), with
copies of them in passing; a bank that lies on the CPU is kept on a GPU where it takes no more than half of the free memory,
else moved a block at a time. Nothing depends on TF32 or autocast being on: they are off here.
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
Parts = Tensor | Sequence[Tensor]  # a bank [n, d], or one in pieces [n_i, d]
Progress = Callable[[int, int], None]  # states searched for, of how many
Tick = Callable[[int], None]  # states of the bank gone through

_BLOCK = 1 << 24  # numbers of the bank at a time
_QUERIES = 1 << 25  # numbers of the states searched for
_PRODUCTS = 1 << 24
_GATHERED = 1 << 21  # numbers of candidates, in float64
_COLUMNS = 256  # summed in a row: fewer make the bound tighter
_MARGIN = 16  # candidates beyond k, or k if that is more
_ROUNDING = 2.0**-23  # what a distance may be short of, relative


@dataclass(frozen=True)
class Exact:
    """Search through all of a bank."""

    parts: tuple[Tensor, ...]  # [n_i, d], of one dtype, in one place
    metric: str
    device: torch.device  # where to compute
    groups: Tensor  # [n] states of one group are no neighbours of each other, as members; a state alone is a group

    @classmethod
    def of(
        cls,
        bank: Parts,
        metric: str = "euclidean",
        device: torch.device | str | None = None,
        groups: Tensor | None = None,
    ) -> Exact:
        """`device` is where to compute; None: where the bank is. `groups` [n] names those that belong together, as tokens of
        one answer do; None: each state stands alone.
        """
        if metric not in METRICS:
            raise SettingError(f"metric={metric!r}: choose from {', '.join(METRICS)}")
        parts = (bank,) if isinstance(bank, Tensor) else tuple(bank)
        if not parts or any(part.ndim != 2 or 0 in part.shape for part in parts):
            raise SettingError(f"a bank is states [n, d], not {[list(part.shape) for part in parts]}: give some rows")
        kinds = {(part.shape[1], part.dtype, part.device) for part in parts}
        if len(kinds) > 1:
            raise SettingError("parts of a bank must have one width, dtype and device: make them alike")
        place = parts[0].device if device is None else torch.device(device)
        if place.type == "mps":
            place = torch.device("cpu")  # float64 is needed
        if place.type == "cuda" and parts[0].device.type == "cpu":
            size = sum(part.numel() * part.element_size() for part in parts)
            if 2 * size <= torch.cuda.mem_get_info(place)[0]:
                parts = tuple(part.to(place) for part in parts)
        count = sum(map(len, parts))
        if groups is not None and groups.shape != (count,):
            raise SettingError(f"groups {list(groups.shape)} for {count} states: name the group of each")
        return cls(parts, metric, place, torch.arange(count) if groups is None else groups.long().cpu())

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def width(self) -> int:
        return self.parts[0].shape[1]

    @property
    def wide(self) -> torch.dtype:
        """What distances are given in."""
        return torch.float64 if self.parts[0].dtype == torch.float64 else torch.float32

    @cached_property
    def centre(self) -> Tensor:
        """A point amid the bank [d], float64 with float32's digits: the mean of up to 4096 of its states."""
        some = self.rows(torch.arange(0, len(self), -(-len(self) // 4096)))
        return self.directed(some).mean(0).float().double()

    def nearest(self, states: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """Distances [n, k] in float64, ascending, of states [n, d] that are not members, and which states they are [n, k]."""
        check(states, self, k)
        return self._in_turns(len(states), k, lambda some: (states[some].to(self.wide), None), progress)

    def among(self, members: Tensor, k: int, *, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """The same for members of the bank, given as rows [n]: none is its own neighbour, nor one of its group; an equal state
        elsewhere is.
        """
        check(None, self, k)
        return self._in_turns(len(members), k, lambda some: (self.rows(members[some]), self.groups[members[some]]), progress)

    @cached_property
    def largest_group(self) -> int:
        return int(self.groups.unique(return_counts=True)[1].max())

    def _in_turns(
        self, count: int, k: int, read: Callable[[slice], tuple[Tensor, Tensor | None]], progress: Progress | None
    ) -> tuple[Tensor, Tensor]:
        size, apart, which = max(1, _QUERIES // self.width), list[Tensor](), list[Tensor]()
        for start in range(0, count, size):
            some = slice(start, min(start + size, count))

            def tick(seen: int, some: slice = some) -> None:
                if progress is not None:
                    progress(some.start + (some.stop - some.start) * seen // len(self), count)

            states, own = read(some)
            with full_precision(self.device):
                near, rows = self._nearest(states.to(self.device), k, None if own is None else own.to(self.device), tick)
            apart.append(self.measured(near))
            which.append(rows)
            if progress is not None:
                progress(some.stop, count)
        if not apart:
            nothing = torch.empty(0, k, device=self.device)
            return nothing.double(), nothing.long()
        return torch.cat(apart), torch.cat(which)

    def _nearest(self, states: Tensor, k: int, own: Tensor | None, tick: Tick) -> tuple[Tensor, Tensor]:
        apart = torch.empty(len(states), k, dtype=torch.float64, device=self.device)
        which = torch.empty(len(states), k, dtype=torch.long, device=self.device)
        left = torch.arange(len(states), device=self.device)
        keep = min(len(self), k + max(k, _MARGIN) + (own is not None))
        for dtype in (torch.float32, torch.float64):
            some, mine = states[left], None if own is None else own[left]
            last, rows = self._candidates(some, keep, mine, dtype, tick if dtype == torch.float32 else _silent)
            apart[left], which[left] = self.closest(some, rows, k, mine)
            proved = self._proved(some, apart[left, -1], last, dtype)
            left = left[~proved] if keep < len(self) else left[:0]  # all were candidates
            if not len(left):
                return apart, which
        apart[left], which[left] = self._by_differences(states[left], k, None if own is None else own[left])
        return apart, which

    def _candidates(
        self, states: Tensor, keep: int, own: Tensor | None, dtype: torch.dtype, tick: Tick
    ) -> tuple[Tensor, Tensor]:
        """The least a = |s|^2 - 2 h.s: the last one kept [n], and the rows of all that were [n, keep]."""
        seen = self.placed(states, dtype)  # [n, d]
        best, which = seen.new_empty(len(seen), 0), torch.empty(len(seen), 0, dtype=torch.long, device=self.device)
        for start, block in blocks(self.parts, max(1, _BLOCK // self.width)):
            members = self.placed(block, dtype)  # [b, d]
            norms = _norms(members)
            size, found = max(1, _PRODUCTS // len(members)), list[tuple[Tensor, Tensor]]()
            for first in range(0, len(seen), size):
                some = slice(first, first + size)
                a = _products(seen[some], members, norms)  # [some, b]
                if own is not None:
                    self._leave_out(a, own[some], start)
                least, at = a.topk(min(keep, len(members)), largest=False)
                least, at = torch.cat((best[some], least), 1), torch.cat((which[some], at + start), 1)
                least, order = least.topk(min(keep, least.shape[1]), largest=False)
                found.append((least, at.gather(1, order)))
            best, which = (torch.cat(some) for some in zip(*found, strict=True))
            tick(start + len(block))
        return best[:, -1].double(), which

    def closest(self, states: Tensor, rows: Tensor, k: int, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of rows of the bank [n, c] the k nearest to each state [n, d]: distances from differences, and rows; -1 is none."""
        apart = torch.empty(rows.shape, dtype=torch.float64, device=self.device)
        size = max(1, _GATHERED // (rows.shape[1] * self.width))
        for first in range(0, len(states), size):
            some = rows[first : first + size]
            members = self.directed(self.rows(some.clamp_min(0).flatten())).unflatten(0, some.shape)  # [some, c, d]
            members -= self.directed(states[first : first + size]).unsqueeze(1)
            apart[first : first + size] = torch.linalg.vector_norm(members, dim=-1)
        apart[rows < 0] = torch.inf
        if own is not None:
            apart[self.groups.to(rows.device)[rows.clamp_min(0)] == own.unsqueeze(1)] = torch.inf
        apart, order = apart.topk(k, largest=False)
        return apart, rows.gather(1, order)

    def _proved(self, states: Tensor, t: Tensor, last: Tensor, dtype: torch.dtype) -> Tensor:
        """Whether no state outside the candidates is nearer than t [n], when the last candidate had a = `last` [n]."""
        h = torch.linalg.vector_norm(self.placed(states, dtype), dim=-1, dtype=torch.float64)
        u = torch.finfo(dtype).eps / 2
        s = t + h + 4 * u * (h + t)  # a state farther from the centre is farther than t from h
        least = (last + h.square() - error_bound(h, s, self.width, dtype)).clamp_min(0).sqrt() - 2 * u * (h + s)
        fits = s.square() * 8 < torch.finfo(dtype).max  # and nothing overflowed
        proved: Tensor = (t == 0) | ((least >= t * (1 - _ROUNDING)) & fits)
        return proved

    def _by_differences(self, states: Tensor, k: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
        seen = self.directed(states)
        best, which = seen.new_empty(len(seen), 0), torch.empty(len(seen), 0, dtype=torch.long, device=self.device)
        size = max(1, min(_BLOCK // self.width, _PRODUCTS // len(seen)))
        for start, block in blocks(self.parts, size):
            apart = torch.cdist(seen, self.directed(block), compute_mode="donot_use_mm_for_euclid_dist")
            if own is not None:
                self._leave_out(apart, own, start)
            rows = torch.arange(start, start + len(block), device=self.device).expand_as(apart)
            least, order = torch.cat((best, apart), 1).topk(min(k, best.shape[1] + len(block)), largest=False)
            best, which = least, torch.cat((which, rows), 1).gather(1, order)
        return best, which

    def _leave_out(self, apart: Tensor, own: Tensor, start: int) -> None:
        """No row [n, b] has a state of its own group as a neighbour; the block's states begin at `start`."""
        groups = self.groups[start : start + apart.shape[1]].to(apart.device)
        apart.masked_fill_(groups == own.unsqueeze(1), torch.inf)

    def rows(self, rows: Tensor) -> Tensor:
        """These states of the bank [n, d], as they are kept."""
        rows = rows.to(self.parts[0].device)
        if len(self.parts) == 1:
            return self.parts[0][rows]
        found, start = self.parts[0].new_empty(len(rows), self.width), 0
        for part in self.parts:
            inside = (rows >= start) & (rows < start + len(part))
            found[inside] = part[rows[inside] - start]
            start += len(part)
        return found

    def directed(self, states: Tensor) -> Tensor:
        """What distances are between, in float64 and in the place to compute: states, or their directions."""
        states = states.to(self.device, torch.float64)
        return directions(states) if self.metric == "cosine" else states

    def measured(self, near: Tensor) -> Tensor:
        """Distances in the metric asked for, from those between what `directed` gives."""
        return near.square() / 2 if self.metric == "cosine" else near  # |a - b|^2 / 2 = 1 - cos of unit vectors

    def placed(self, states: Tensor, dtype: torch.dtype) -> Tensor:
        """States seen from the centre; the difference is rounded once."""
        if self.metric == "euclidean" and dtype == self.wide == torch.float32:
            return states.to(self.device, dtype) - self.centre.to(dtype)
        return (self.directed(states) - self.centre).to(dtype)


def error_bound(h: Tensor, s: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """How far a, computed of a state |h| from the centre and a member |s| from it, can be off."""
    u, tiny = torch.finfo(dtype).eps / 2, torch.finfo(dtype).tiny
    n = min(width, _COLUMNS) + -(-width // _COLUMNS) + 4
    return 2 * (n * u / (1 - n * u)) * s * (s + h) + 8 * width * tiny


def check(states: Tensor | None, search: Exact, k: int) -> None:
    """Refuse what has no answer; states None are the bank's own."""
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
    return torch.stack([torch.linalg.vecdot(some, some) for some in members.split(_COLUMNS, 1)]).sum(0)  # [b]


def _products(states: Tensor, members: Tensor, norms: Tensor) -> Tensor:
    pairs = list(zip(states.split(_COLUMNS, 1), members.split(_COLUMNS, 1), strict=True))
    a = torch.addmm(norms, pairs[0][0], pairs[0][1].T, alpha=-2)
    for some, those in pairs[1:]:
        a.addmm_(some, those.T, alpha=-2)
    return a


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Float32 products with float32's digits, whatever the process allows elsewhere."""
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


def _silent(_seen: int) -> None:
    pass
