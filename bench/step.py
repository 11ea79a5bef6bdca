"""The cost of MGAP's step for one token: plain torch, the same under torch.compile, and the fused kernels, in one run.

    python bench/step.py

The step follows the head's product: entropy, gate and correction of logits [batch, vocabulary]. Ways take turns in every round.
Calls cycle through sets of inputs and tables that together exceed the card's cache, because a model's weights pass through it
between two tokens. Microseconds per call, medians of rounds:

    GPU      replays of a CUDA graph of the calls: the cost in a captured decoding step
    eager    calls one after another, by CUDA events
    launch   the host's time until a call returns: the cost in eager decoding, which is bound by launches

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
CACHE = 3 << 26  # bytes of all input sets together: several times the 50 MB of a Hopper card
Calls = list[Callable[[], Tensor]]


class Size(NamedTuple):
    """The size of one step."""

    vocab: int
    batch: int
    rank: int


class Times(NamedTuple):
    """Microseconds per call, one per round."""

    gpu: list[float]
    eager: list[float]
    launch: list[float]


def bytes_of(size: Size, width: int, dtype: torch.dtype) -> int:
    """Bytes of logits in and out, states, basis and table, once each."""
    half = size.batch * (2 * size.vocab + width) * dtype.itemsize
    return half + 4 * size.rank * (size.vocab + width)


def build(size: Size, width: int, dtype: torch.dtype, device: str, ways: Sequence[str]) -> dict[str, Calls]:
    """One call per set of inputs, for every way."""
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
    """The plain step as a function of tensors, to compile once for all sets."""
    h, logits = h.to(basis.dtype), output.to(basis.dtype)
    coeff, norm = h @ basis, torch.linalg.vector_norm(h, dim=-1)
    gate = gate_of(norm, coeff, entropy_of(logits), STEP)
    return cut_logits(logits, table, None, coeff, gate, norm, STEP).to(output.dtype)


def check(calls: dict[str, Calls], dtype: torch.dtype) -> None:
    """Check that every way gives the same logits, up to one rounding."""
    right = calls["plain"][0]()
    for way, way_calls in calls.items():
        torch.testing.assert_close(
            way_calls[0](), right, rtol=max(torch.finfo(dtype).eps, 1e-5), atol=1e-4, msg=lambda m, w=way: f"{w}: {m}"
        )


def capture(calls: Calls) -> tuple[torch.cuda.CUDAGraph, int]:
    """All calls as one CUDA graph, at least eight, and their number."""
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
    """Microseconds per call on the GPU, and on the host until `act` returns; `act` makes `count` calls."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    started = time.perf_counter()
    act()
    host = time.perf_counter() - started
    end.record()
    torch.cuda.synchronize()
    return 1000 * start.elapsed_time(end) / count, 1e6 * host / count


def by_clock(act: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    act()
    return 1e6 * (time.perf_counter() - started) / count


def measure(calls: dict[str, Calls], rounds: int, device: str) -> dict[str, Times]:
    """Times of all ways, measured in turns."""
    count = 32  # few enough that launches do not wait for the card
    times = {way: Times([], [], []) for way in calls}
    graphs = {way: capture(way_calls) for way, way_calls in calls.items()} if device == "cuda" else {}
    names = list(calls)
    place = 0
    for number in range(rounds + 1):  # the first one warms up
        for way in names[number % len(names) :] + names[: number % len(names)]:
            way_calls = calls[way]

            def turn(way_calls: Calls = way_calls, place: int = place) -> None:
                for i in range(count):
                    way_calls[(place + i) % len(way_calls)]()

            if device == "cuda":
                eager, launch = by_events(turn, count)
                graph, several = graphs[way]
                gpu, _ = by_events(graph.replay, several)
            else:
                eager = gpu = launch = by_clock(turn, count)
            if number:
                for series, new in zip(times[way], (gpu, eager, launch), strict=True):
                    series.append(new)
        place += count
    return times


def bandwidth() -> float:
    """Bytes per microsecond of a copy of 1 GiB, read and written."""
    source = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    spent = [by_events(lambda: target.copy_(source), 1)[0] for _ in range(12)]
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
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="plain is always included; on a CPU it is the only default")
    args = parser.parse_args(arguments)
    chosen = args.ways or (WAYS if args.device == "cuda" else ("plain",))
    ways = [way for way in WAYS if way == "plain" or way in chosen]
    if args.device == "cpu" and "fused" in ways:
        parser.error("--ways fused needs --device cuda: the kernels are for a GPU")
    dtype = getattr(torch, args.dtype)
    sizes = [Size(vocab, batch, args.rank) for vocab in args.vocabularies for batch in args.batches]
    if args.wide:
        sizes.append(Size(args.vocabularies[:2][-1], args.batches[:2][-1], args.wide))
    rate = bandwidth() if args.device == "cuda" else None
    device = torch.cuda.get_device_name() if rate else f"a CPU, {torch.get_num_threads()} threads: the plain step only"
    lines = []
    for number, size in enumerate(sizes):
        print(f"\rsize {number + 1} of {len(sizes)}: {size}   ", end="", file=sys.stderr, flush=True)
        torch.compiler.reset()  # torch limits the sizes that a function is compiled for
        with torch.no_grad():
            calls = build(size, args.width, dtype, args.device, ways)
            check(calls, dtype)
            times = measure(calls, args.rounds, args.device)
        lines.append(row(size, times, bytes_of(size, args.width, dtype) / rate if rate else None))
        del calls
    print(file=sys.stderr)
    print(f"{device}; {args.dtype}, width {args.width}, {args.rounds} rounds; torch {torch.__version__}, ", end="")
    print(
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}" + (f"; copies {rate / 1e6:.2f} TB/s" if rate else "")
    )
    cell = "GPU / eager / launch" if rate else "us"
    print(f"\n| vocabulary | batch | K | floor, us | plain, {cell} | compiled | fused | fused / plain, GPU | eager | launch |")
    print("|---" * 10 + "|")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
