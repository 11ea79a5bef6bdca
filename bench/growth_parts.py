"""How the parts grow, on random numbers and without a model: MGAP's step, fitting a prior, and distances in a bank.

MGAP's step (`Correction`, in whichever form is active) is timed in two ways. "eager" is its cost in eager decoding: calls in a
row, including the host's time. "captured" is its cost in compiled decoding: the replay of a CUDA graph with a cold cache, as a
model's weights would leave it. Memory is what the step keeps, mostly its table. For fitting and distances it is the peak above
what was allocated before, on the device and in the process together.
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
from measure import column, in_turns, reset_peak, say, seconds, spread
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
    """MGAP's step at one x of an axis, for one batch size."""

    x: int
    way: str  # batch 1, batch 32
    call: Callable[[], Tensor]
    mib: float | None  # only for the first batch size: it is the same for all
    floor_ms: float


def along_k(args: argparse.Namespace, bandwidth: float) -> Iterator[Point]:
    head = draw_head(args.step_vocabulary, args.width, args.device)
    yield from _steps("k", [(rank, rank, head) for rank in args.k], args, bandwidth)


def along_vocabulary(args: argparse.Namespace, bandwidth: float) -> Iterator[Point]:
    heads = [(size, RANK, draw_head(size, args.width, args.device)) for size in args.vocabulary]
    yield from _steps("vocabulary", heads, args, bandwidth)


def draw_head(vocabulary: int, width: int, device: str) -> Head:
    module = nn.Linear(width, vocabulary, bias=False, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        module.weight.normal_(std=width**-0.5)
    return Head.measure(module, torch.randn(1, 1, width, device=device, dtype=torch.bfloat16))


@torch.no_grad()
def _steps(axis: str, places: Sequence[tuple[int, int, Head]], args: argparse.Namespace, bandwidth: float) -> Iterator[Point]:
    steps = [step for place in places for step in _bind(*place, args.step_batches, bandwidth)]
    calls = {f"{step.x} {step.way}": partial(_train, step.call, args.device) for step in steps}
    timed = in_turns(calls, ROUNDS, clock=lambda call: 1000 * float(call()), label=f"MGAP's step along {axis}")
    for step in steps:
        low, middle, high = spread(column(timed, f"{step.x} {step.way}"))
        yield Point(axis, "", f"eager, {step.way}", step.x, middle, low, high, None, step.mib, step.floor_ms)
        if torch.device(args.device).type == "cuda":
            low, middle, high = _captured(step.call)
            yield Point(axis, "", f"captured, {step.way}", step.x, middle, low, high, None, None, step.floor_ms)


def _bind(x: int, rank: int, head: Head, batches: Sequence[int], bandwidth: float) -> Iterator[Step]:
    basis = torch.linalg.qr(torch.randn(head.hidden_size, rank, dtype=torch.float64)).Q  # [d, K]
    held = _allocated(head.device)
    correction = Correction(basis, head, SETTINGS, Tap())
    if head.device.type == "cuda":
        kept_bytes = _allocated(head.device) - held
    else:
        kept_bytes = sum(value.nbytes for value in vars(correction).values() if isinstance(value, Tensor))
    for rows in batches:
        h = torch.randn(rows, 1, head.hidden_size, device=head.device, dtype=head.dtype)
        logits = head.product(h)  # [B, 1, vocab]
        moved = 4 * rank * (head.hidden_size + head.vocab_size) + h.nbytes + 2 * logits.nbytes
        call = partial(correction, head.module, (h,), logits)
        yield Step(x, f"batch {rows}", call, kept_bytes / MIB if rows == batches[0] else None, 1000 * moved / bandwidth)


def _train(call: Callable[[], Tensor], device: str) -> float:
    """Seconds per call, averaged over about 10 ms of calls in a row."""
    once = min(seconds(call, device) for _ in range(3))
    times = max(1, min(200, round(TRAIN_S / once)))

    def train() -> None:
        for _ in range(times):
            call()

    return seconds(train, device) / times


def _captured(call: Callable[[], Tensor]) -> tuple[float, float, float]:
    """Quartiles of the milliseconds of a graph's replay."""
    from triton.testing import do_bench

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # compiles and allocates
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    low, middle, high = do_bench(graph.replay, warmup=5, rep=30, quantiles=[0.25, 0.5, 0.75])
    return low, middle, high


def along_n(args: argparse.Namespace, _bandwidth: float) -> Iterator[Point]:
    """Time to fit a prior of rank 5 from states that arrive in batches, as from a model."""
    states = draw_states(max(args.n), args.width, args.device, torch.float32)
    yield from _whole("n", {"fit": lambda count: Subspace.from_states(states[:count].split(64), RANK)}, args.n, args)


def along_bank(args: argparse.Namespace, _bandwidth: float) -> Iterator[Point]:
    """Time of tau over a bank, and of d_k of query states in it."""
    bank = draw_states(max(args.bank), args.bank_width, args.device, torch.bfloat16)
    queries = draw_states(args.queries, args.bank_width, args.device, torch.float32)
    ways: dict[str, Callable[[int], object]] = {
        "tau": lambda count: threshold(bank[:count]),
        "d_k": lambda count: neighbour_distances(queries, bank[:count]),
    }
    yield from _whole("bank", ways, args.bank, args)


def draw_states(count: int, width: int, device: str, dtype: torch.dtype) -> Tensor:
    """States [count, d] like those of bench/neighbours.py: a low-rank part, a little noise, a mean far from the origin."""
    states = torch.empty(count, width, device=device, dtype=dtype)
    rank = min(64, width)
    mix = torch.randn(rank, width, device=device) * torch.arange(1, rank + 1, device=device).unsqueeze(1) ** -0.5
    for chunk in states.split(16384):
        low = torch.randn(len(chunk), rank, device=device) @ mix
        chunk.copy_(low + 0.1 * torch.randn(chunk.shape, device=device) + 1)
    return states


def _whole(
    axis: str, ways: dict[str, Callable[[int], object]], places: Sequence[int], args: argparse.Namespace
) -> Iterator[Point]:
    """Time whole calls after a warm-up, repeated for up to a second; stops after a call that exceeds --patience."""
    for way, call in ways.items():
        call(min(places))
        for count in sorted(places):
            say(f"{axis}: {way} of {count}")
            times, mib = list[float](), None
            while not times or (sum(times) + max(times) < 1 and len(times) < ROUNDS):
                before = _working(args.device, start=True)
                times.append(seconds(partial(call, count), args.device))
                after = _working(args.device)
                if before is not None and after is not None:
                    mib = max(mib or 0.0, (after - before) / MIB)
            low, middle, high = spread([1000 * spent for spent in times])
            yield Point(axis, "", way, count, middle, low, high, None, mib)
            if times[0] > args.patience and count < max(places):
                say("")
                print(f"{axis}: {way} of {count} took {times[0]:.0f} s; larger ones are left out (--patience)", flush=True)
                break
        say("")


def _allocated(device: str | torch.device) -> int:
    return torch.cuda.memory_allocated(device) if torch.device(device).type == "cuda" else 0


def _working(device: str, *, start: bool = False) -> int | None:
    """Bytes of process and device: with `start`, now, and the peaks are reset; else the peak since. None: unknown."""
    if start:
        gc.collect()
        reset_peak(device)
        try:
            ctypes.CDLL(None).malloc_trim(0)  # returns freed memory to the system
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
