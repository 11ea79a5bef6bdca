"""What MGAP's step costs for one token: plain torch, plain torch under torch.compile, and the fused kernels; one run.

    python bench/step.py

The step is what follows the head's product: entropy, gate and correction of logits [batch, vocabulary]. Ways take turns in
every round, and calls take turns among sets of inputs and tables that are larger together than the card's cache, because a
model's weights go through it between two tokens. Microseconds a call, medians of rounds:

    GPU      replays of a CUDA graph of the calls: what a captured decoding step pays
    eager    calls one after another, by CUDA events
    launch   the host's time until a call returns: what eager decoding, bound by launches, pays

The floor is each input read once and each output written once, at the bandwidth of a large copy on the same card. On a CPU
there is only the plain step, and only its time.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mgap.backbones.head import Head
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction, Settings, cut_logits, entropy_of, gate_of

WAYS = ("plain", "compiled", "fused")
STEP = Settings(alpha=0.75, lam=0.5)
CACHE = 3 << 26  # bytes of all sets together: several times the 50 MB of a Hopper card
Calls = list[Callable[[], Tensor]]


class Size(NamedTuple):
    """Of one step."""

    vocab: int
    batch: int
    rank: int


class Times(NamedTuple):
    """Microseconds a call, a round each."""

    gpu: list[float]
    eager: list[float]
    launch: list[float]


def bytes_of(size: Size, width: int, dtype: torch.dtype) -> int:
    """Logits in and out, states, basis and table, once each."""
    half = size.batch * (2 * size.vocab + width) * dtype.itemsize
    return half + 4 * size.rank * (size.vocab + width)


def build(size: Size, width: int, dtype: torch.dtype, device: str, ways: Sequence[str]) -> dict[str, Calls]:
    """One call a set of inputs, for every way."""
    torch.manual_seed(0)
    module = nn.Linear(width, size.vocab, bias=False, device=device, dtype=dtype).requires_grad_(False)
    basis = torch.linalg.qr(torch.randn(width, size.rank, device=device))[0]
    head = Head.measure(module, torch.ones(1, width, device=device, dtype=dtype))
    compiled = torch.compile(functional, dynamic=False)
    calls: dict[str, Calls] = {way: [] for way in ways}
    for _ in range(min(max(2, math.ceil(CACHE / bytes_of(size, width, dtype))), 256)):
        h = 3 * torch.randn(size.batch, 1, width, device=device, dtype=dtype)
        output = module(h)
        plain = Correction(basis, head, STEP, Tap(), fused=False)
        for way in ways:
            if way == "compiled":
                calls[way].append(lambda h=h, o=output, p=plain: compiled(h, o, p.basis, p.table))
            else:
                step = Correction(basis, head, STEP, Tap(), fused=True) if way == "fused" else plain
                calls[way].append(lambda h=h, o=output, s=step: s(module, (h,), o))
    return calls


def functional(h: Tensor, output: Tensor, basis: Tensor, table: Tensor) -> Tensor:
    """The plain step as a function of tensors, which is compiled once for all sets."""
    h, logits = h.to(basis.dtype), output.to(basis.dtype)
    coeff, norm = h @ basis, torch.linalg.vector_norm(h, dim=-1)
    gate = gate_of(norm, coeff, entropy_of(logits), STEP)
    return cut_logits(logits, table, None, coeff, gate, norm, STEP).to(output.dtype)


def check(calls: dict[str, Calls], dtype: torch.dtype) -> None:
    """Every way gives the same logits, up to one rounding."""
    right = calls["plain"][0]()
    for way, made in calls.items():
        torch.testing.assert_close(
            made[0](), right, rtol=max(torch.finfo(dtype).eps, 1e-5), atol=1e-4, msg=lambda m, w=way: f"{w}: {m}"
        )


def capture(calls: Calls) -> tuple[torch.cuda.CUDAGraph, int]:
    """All calls as one CUDA graph, eight at least, and how many they are."""
    calls = calls * math.ceil(8 / len(calls))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:3]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph, len(calls)


def by_events(act: Callable[[], object], count: int) -> tuple[float, float]:
    """Microseconds of the GPU, and of the host until it is free again, for each of so many calls that `act` makes."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    began = time.perf_counter()
    act()
    host = time.perf_counter() - began
    end.record()
    torch.cuda.synchronize()
    return 1000 * start.elapsed_time(end) / count, 1e6 * host / count


def by_clock(act: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    act()
    return 1e6 * (time.perf_counter() - began) / count


def measure(calls: dict[str, Calls], rounds: int, device: str) -> dict[str, Times]:
    """Times of all ways, which take turns."""
    count = 32  # few enough that launches do not wait for the card
    times = {way: Times([], [], []) for way in calls}
    graphs = {way: capture(made) for way, made in calls.items()} if device == "cuda" else {}
    names = list(calls)
    place = 0
    for number in range(rounds + 1):  # the first one warms up
        for way in names[number % len(names) :] + names[: number % len(names)]:
            made = calls[way]

            def turn(made: Calls = made, place: int = place) -> None:
                for i in range(count):
                    made[(place + i) % len(made)]()

            if device == "cuda":
                eager, launch = by_events(turn, count)
                graph, several = graphs[way]
                gpu, _ = by_events(graph.replay, several)
            else:
                eager = gpu = launch = by_clock(turn, count)
            if number:
                for kept, new in zip(times[way], (gpu, eager, launch), strict=True):
                    kept.append(new)
        place += count
    return times


def bandwidth() -> float:
    """Bytes a microsecond of a copy of 1 GiB, read and written."""
    here = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")
    there = torch.empty_like(here)
    spent = [by_events(lambda: there.copy_(here), 1)[0] for _ in range(12)]
    return (2 << 30) / statistics.median(spent[2:])


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def row(size: Size, times: dict[str, Times], floor: float | None) -> str:
    cells = [str(number) for number in size]
    cells.append("-" if floor is None else f"{floor:.1f}")
    for way in WAYS:
        parts = [f"{statistics.median(part):.1f}" for part in times[way]] if way in times else []
        cells.append((" / ".join(parts) if floor is not None else parts[0]) if parts else "-")
    for part in range(3):
        ratios = [a / b for a, b in zip(times["fused"][part], times["plain"][part], strict=True)] if "fused" in times else []
        cells.append(spread(ratios) if ratios else "-")
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_card = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_card else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32064, 151936, 262144] if on_card else [2048])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 256] if on_card else [1, 8])
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--wide", type=int, default=64, help="the rank of one more row, at the second size of each; 0: none")
    parser.add_argument("--width", type=int, default=4096 if on_card else 64)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="plain is always among them; on a CPU it is the only default")
    given = parser.parse_args(arguments)
    asked = given.ways or (WAYS if given.device == "cuda" else ("plain",))
    ways = [way for way in WAYS if way == "plain" or way in asked]
    if given.device == "cpu" and "fused" in ways:
        parser.error("--ways fused needs --device cuda: the kernels are for a GPU")
    dtype = getattr(torch, given.dtype)
    sizes = [Size(vocab, batch, given.rank) for vocab in given.vocabularies for batch in given.batches]
    if given.wide:
        sizes.append(Size(given.vocabularies[:2][-1], given.batches[:2][-1], given.wide))
    rate = bandwidth() if given.device == "cuda" else None
    where = torch.cuda.get_device_name() if rate else f"a CPU, {torch.get_num_threads()} threads: the plain step only"
    found = []
    for number, size in enumerate(sizes):
        print(f"\rsize {number + 1} of {len(sizes)}: {size}   ", end="", file=sys.stderr, flush=True)
        torch.compiler.reset()  # a function may be compiled for few sizes only
        with torch.no_grad():
            calls = build(size, given.width, dtype, given.device, ways)
            check(calls, dtype)
            times = measure(calls, given.rounds, given.device)
        found.append(row(size, times, bytes_of(size, given.width, dtype) / rate if rate else None))
        del calls
    print(file=sys.stderr)
    print(f"{where}; {given.dtype}, width {given.width}, {given.rounds} rounds; torch {torch.__version__}, ", end="")
    print(
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}" + (f"; copies {rate / 1e6:.2f} TB/s" if rate else "")
    )
    cell = "GPU / eager / launch" if rate else "us"
    print(f"\n| vocabulary | batch | K | floor, us | plain, {cell} | compiled | fused | fused / plain, GPU | eager | launch |")
    print("|---" * 10 + "|")
    print("\n".join(found), flush=True)


if __name__ == "__main__":
    main()
