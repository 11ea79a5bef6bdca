"""How the parts grow, on drawn numbers and without a model: MGAP's step, the fitting of a prior, and distances in a bank.

MGAP's step (`Correction`, whichever form of it is active) is timed in two ways. "eager" is what a step of eager decoding pays:
calls in a row, the host's time included. "captured" is what compiled decoding pays: the replay of a CUDA graph, with the
caches of the card emptied before, as the weights of a model would leave them. Memory is what the step keeps: its table, mostly.
Fitting and distances count what they take at most beyond what was there, on the device and in the process together.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from growth_points import Point
from measure import column, forget_peak, in_turns, say, seconds, spread
from torch import Tensor, nn

from mgap.backbones.head import Head
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction, Settings
from mgap.priors.manifold import neighbour_distances, threshold
from mgap.priors.subspace import Subspace

MIB = 1 << 20
RANK, ROUNDS, TRAIN_S = 5, 5, 0.01
SETTINGS = Settings(alpha=0.75, lam=0.5)  # the paper's


@dataclass(frozen=True)
class Step:
    """MGAP's step at one place of an axis, in one batch."""

    x: int
    way: str  # batch 1, batch 32
    call: Callable[[], Tensor]
    mib: float | None  # with the first batch only: it is the same for all
    floor_ms: float


def along_k(given: argparse.Namespace, bandwidth: float) -> Iterator[Point]:
    head = draw_head(given.step_vocabulary, given.width, given.device)
    yield from _steps("k", [(rank, rank, head) for rank in given.k], given, bandwidth)


def along_vocabulary(given: argparse.Namespace, bandwidth: float) -> Iterator[Point]:
    heads = [(size, RANK, draw_head(size, given.width, given.device)) for size in given.vocabulary]
    yield from _steps("vocabulary", heads, given, bandwidth)


def draw_head(vocabulary: int, width: int, device: str) -> Head:
    module = nn.Linear(width, vocabulary, bias=False, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        module.weight.normal_(std=width**-0.5)
    return Head.measure(module, torch.randn(1, 1, width, device=device, dtype=torch.bfloat16))


@torch.no_grad()
def _steps(axis: str, places: Sequence[tuple[int, int, Head]], given: argparse.Namespace, bandwidth: float) -> Iterator[Point]:
    steps = [step for place in places for step in _bind(*place, given.step_batches, bandwidth)]
    calls = {f"{step.x} {step.way}": partial(_train, step.call, given.device) for step in steps}
    made = in_turns(calls, ROUNDS, clock=lambda call: 1000 * float(call()), label=f"MGAP's step along {axis}")
    for step in steps:
        low, middle, high = spread(column(made, f"{step.x} {step.way}"))
        yield Point(axis, "", f"eager, {step.way}", step.x, middle, low, high, None, step.mib, step.floor_ms)
        if torch.device(given.device).type == "cuda":
            low, middle, high = _captured(step.call)
            yield Point(axis, "", f"captured, {step.way}", step.x, middle, low, high, None, None, step.floor_ms)


def _bind(x: int, rank: int, head: Head, batches: Sequence[int], bandwidth: float) -> Iterator[Step]:
    basis = torch.linalg.qr(torch.randn(head.hidden_size, rank, dtype=torch.float64)).Q  # [d, K]
    held = _allocated(head.device)
    correction = Correction(basis, head, SETTINGS, Tap())
    if head.device.type == "cuda":
        kept = _allocated(head.device) - held
    else:
        kept = sum(value.nbytes for value in vars(correction).values() if isinstance(value, Tensor))
    for rows in batches:
        h = torch.randn(rows, 1, head.hidden_size, device=head.device, dtype=head.dtype)
        logits = head.product(h)  # [B, 1, vocab]
        moved = 4 * rank * (head.hidden_size + head.vocab_size) + h.nbytes + 2 * logits.nbytes
        call = partial(correction, head.module, (h,), logits)
        yield Step(x, f"batch {rows}", call, kept / MIB if rows == batches[0] else None, 1000 * moved / bandwidth)


def _train(call: Callable[[], Tensor], device: str) -> float:
    """Seconds of a call among several in a row, about 10 ms of them."""
    once = min(seconds(call, device) for _ in range(3))
    times = max(1, min(200, round(TRAIN_S / once)))

    def train() -> None:
        for _ in range(times):
            call()

    return seconds(train, device) / times


def _captured(call: Callable[[], Tensor]) -> tuple[float, float, float]:
    """Quartiles of milliseconds of a graph's replay."""
    from triton.testing import do_bench

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # what is compiled or allocated the first time
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    low, middle, high = do_bench(graph.replay, warmup=5, rep=30, quantiles=[0.25, 0.5, 0.75])
    return low, middle, high


def along_n(given: argparse.Namespace, _bandwidth: float) -> Iterator[Point]:
    """Seconds to fit a prior of rank 5 from so many states, which come in batches as from a model."""
    states = draw_states(max(given.n), given.width, given.device, torch.float32)
    yield from _whole("n", {"fit": lambda count: Subspace.from_states(states[:count].split(64), RANK)}, given.n, given)


def along_bank(given: argparse.Namespace, _bandwidth: float) -> Iterator[Point]:
    """Seconds of tau over a bank of so many states, and of d_k of states that are searched for in it."""
    bank = draw_states(max(given.bank), given.bank_width, given.device, torch.bfloat16)
    sought = draw_states(given.queries, given.bank_width, given.device, torch.float32)
    ways: dict[str, Callable[[int], object]] = {
        "tau": lambda count: threshold(bank[:count]),
        "d_k": lambda count: neighbour_distances(sought, bank[:count]),
    }
    yield from _whole("bank", ways, given.bank, given)


def draw_states(count: int, width: int, device: str, dtype: torch.dtype) -> Tensor:
    """States [count, d] as those of bench/neighbours.py: a part of low rank, a little noise, a mean far from the origin."""
    states = torch.empty(count, width, device=device, dtype=dtype)
    rank = min(64, width)
    mix = torch.randn(rank, width, device=device) * torch.arange(1, rank + 1, device=device).unsqueeze(1) ** -0.5
    for some in states.split(16384):
        low = torch.randn(len(some), rank, device=device) @ mix
        some.copy_(low + 0.1 * torch.randn(some.shape, device=device) + 1)
    return states


def _whole(
    axis: str, ways: dict[str, Callable[[int], object]], places: Sequence[int], given: argparse.Namespace
) -> Iterator[Point]:
    """Whole calls, each warmed up and repeated while that takes a second; none that follows one beyond the patience."""
    for way, call in ways.items():
        call(min(places))
        for count in sorted(places):
            say(f"{axis}: {way} of {count}")
            times, mib = list[float](), None
            while not times or (sum(times) + max(times) < 1 and len(times) < ROUNDS):
                before = _working(given.device, start=True)
                times.append(seconds(partial(call, count), given.device))
                after = _working(given.device)
                if before is not None and after is not None:
                    mib = max(mib or 0.0, (after - before) / MIB)
            low, middle, high = spread([1000 * spent for spent in times])
            yield Point(axis, "", way, count, middle, low, high, None, mib)
            if times[0] > given.patience and count < max(places):
                say("")
                print(f"{axis}: {way} of {count} took {times[0]:.0f} s; larger ones are left out (--patience)", flush=True)
                break
        say("")


def _allocated(device: str | torch.device) -> int:
    return torch.cuda.memory_allocated(device) if torch.device(device).type == "cuda" else 0


def _working(device: str, *, start: bool = False) -> int | None:
    """Bytes of the process and the device: now, from where on peaks are counted anew, or at most since then. None: unknown."""
    if start:
        gc.collect()
        forget_peak(device)
        try:
            ctypes.CDLL(None).malloc_trim(0)  # else what earlier calls gave back is still the process's
            Path("/proc/self/clear_refs").write_text("5")
        except (OSError, AttributeError):
            return None
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    line = next(line for line in lines if line.startswith("VmRSS" if start else "VmHWM"))
    on_card = torch.device(device).type == "cuda"
    card = (_allocated(device) if start else torch.cuda.max_memory_allocated(device)) if on_card else 0
    return 1024 * int(line.split()[1]) + card
