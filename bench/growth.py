"""How time and memory grow with batch, answer length, K, vocabulary, N and bank size, and which of them linearly.

    python bench/growth.py --out runs/growth                      # both models on a GPU; tiny ones without
    python bench/growth.py --axes k vocabulary --out runs/growth
    python bench/growth.py --from runs/growth/growth.json --out runs/growth   # tables and figures again, without a device

    batch, length   a decoding step of vanilla, MGAP and VCD, at a model's shape with random weights (bench/growth_decoding.py)
    k, vocabulary   MGAP's step alone (bench/growth_parts.py)
    n, bank         fitting a prior; tau and d_k

The last table says whether each curve is flat, linear or between (bench/growth_points.py), and what its formula predicts. With
--out, growth.json has every point, and the curves are drawn (bench/growth_figures.py).
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from growth_decoding import RANK, Bench, along_batch, along_length
from growth_figures import draw
from growth_parts import along_bank, along_k, along_n, along_vocabulary
from growth_points import Point, curves, growth, read, write
from measure import about, bandwidth, synchronize, table
from shapes import SHAPES, build

AXES = ("batch", "length", "k", "vocabulary", "n", "bank")
PARTS: dict[str, Callable[[argparse.Namespace, float], Iterator[Point]]] = {
    "k": along_k,
    "vocabulary": along_vocabulary,
    "n": along_n,
    "bank": along_bank,
}
LARGE: dict[str, Any] = {
    "models": ["llava-1.5-7b", "qwen3-vl-8b"],
    "batch": [1, 2, 4, 8, 16, 32, 64],
    "length": [16, 64, 256, 1024],
    "k": [1, 2, 5, 16, 64],
    "vocabulary": [32768, 65536, 131072, 262144],
    "n": [10, 50, 200, 1000, 5000, 20000],
    "bank": [10_000, 100_000, 500_000, 1_000_000],
    "width": 4096,
    "bank_width": 4096,
    "step_vocabulary": 151_936,
    "queries": 1000,
}
SMALL: dict[str, Any] = {
    "models": ["tiny-llava", "tiny-qwen3-vl"],
    "batch": [1, 2, 4, 8],
    "length": [16, 32, 64, 128],
    "k": [1, 2, 5, 16, 64],
    "vocabulary": [4096, 8192, 16384, 32768],
    "n": [10, 50, 200, 1000, 4000],
    "bank": [1000, 4000, 16000],
    "width": 256,
    "bank_width": 256,
    "step_vocabulary": 8192,
    "queries": 200,
}
UNITS = {"k": ("us", 1000.0), "vocabulary": ("us", 1000.0), "n": ("s", 0.001), "bank": ("s", 0.001)}  # others in ms
NAMES = {"k": "MGAP's step", "vocabulary": "MGAP's step", "n": "prior", "bank": "departure"}  # for axes without a model
STEP = "2 B K (d + V) flops; 4 K (d + V) + 4 B V bytes"
EXPECTED = {
    ("batch", "time"): "weights once, each row's cache: a fixed part and a linear one",
    ("batch", "memory"): "linear: keys and values of every row",
    ("length", "time"): "weights once, the cache grows by a token: nearly flat",
    ("length", "memory"): "keys and values: a fixed part (the prompt) and a linear one",
    ("k", "time"): STEP,
    ("k", "memory"): "4 K (d + V) bytes: linear",
    ("vocabulary", "time"): STEP,
    ("vocabulary", "memory"): "4 K (d + V) bytes: linear",
    ("n", "time"): "N^2 d flops up to N = d, N d^2 beyond: steeper, then linear",
    ("n", "memory"): "linear up to a few d rows, flat beyond",
    ("bank", "time"): "2 n q d flops of q states: linear; of tau, q = n up to 10,000",
    ("bank", "memory"): "a block at a time: flat beyond the first",
}


def measure(args: argparse.Namespace, keep: Callable[[list[Point]], None]) -> list[Point]:
    """Measure all chosen axes, one model at a time. `keep` gets all points so far after each."""
    points, rate = list[Point](), bandwidth(args.device).best
    print(f"memory is read or copied at {rate / 1e9:.0f} GB/s at best", flush=True)

    def take(measured: Iterator[Point], title: str) -> None:
        started = time.perf_counter()
        new = list(measured)
        synchronize(args.device)
        points.extend(new)
        keep(points)
        print(f"\n{title} ({time.perf_counter() - started:.0f} s)\n\n{along(new)}", flush=True)

    for name in args.models if {"batch", "length"} & set(args.axes) else ():
        started = time.perf_counter()
        bench = Bench(name, build(name, args.device), rate)
        print(f"\n{name}: built in {time.perf_counter() - started:.0f} s, {bench.held / 2**30:.2f} GiB", flush=True)
        with frozen():
            if "batch" in args.axes:
                take(along_batch(bench, args.batch, args.tokens, args.rounds), f"{name}, batch: ms a step")
            if "length" in args.axes:
                take(along_length(bench, args.length), f"{name}, tokens of the answer: ms a step")
        del bench
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    for axis in (axis for axis in AXES if axis in args.axes and axis in PARTS):
        with frozen():
            take(PARTS[axis](args, rate), f"{axis}: {unit(axis)[0]}")
    return points


@contextmanager
def frozen() -> Iterator[None]:
    """Inside, garbage collection skips existing objects, such as a model's thousands."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def unit(axis: str) -> tuple[str, float]:
    """The time unit of an axis, and how many of it are a millisecond."""
    return UNITS.get(axis, ("ms", 1.0))


def along(points: Sequence[Point]) -> str:
    """A table of one axis, with a row per x and a column per way: medians, ratios to vanilla, memory."""
    ways = list(dict.fromkeys(point.way for point in points))
    cells = {(point.x, point.way): point for point in points}

    def cell(x: float, way: str) -> str:
        if (x, way) not in cells:
            return "-"
        point = cells[x, way]
        ratio = "" if point.ratio is None or way == "vanilla" else f", {point.ratio:.3f}x"
        memory = "" if point.mib is None else f", {point.mib:.4g} MiB"
        return f"{point.ms * unit(point.axis)[1]:.4g}{ratio}{memory}"

    places = sorted({point.x for point in points})
    return table([points[0].axis, *ways] if points else [], [[f"{x:g}", *(cell(x, way) for way in ways)] for x in places])


def summary(points: Sequence[Point]) -> str:
    """A table with a row per curve: how it grows, its range, and what the formula predicts."""
    rows = []
    for (axis, model, way), group in curves(points).items():
        name, factor = unit(axis)
        what = ", ".join(part for part in (model or NAMES[axis], way) if part)
        times = [(point.x, factor * point.ms) for point in group]
        sizes = [(point.x, point.mib) for point in group if point.mib is not None and point.mib > 0]
        floors = [factor * point.floor_ms for point in group if point.floor_ms is not None]
        floor = f"; floor {floors[0]:.3g} to {floors[-1]:.3g} {name}" if floors else ""
        expected = "linear: flops" if way == "first token" else EXPECTED[axis, "time"]
        rows.append(_row(f"{what}: {name}", axis, times, expected + floor))
        if sizes:
            label = f"{NAMES[axis]}, what it keeps" if axis in ("k", "vocabulary") else what
            rows.append(_row(f"{label}: MiB", axis, sizes, EXPECTED[axis, "memory"]))
    return table(["what", "grows with", "how", "measured from-to", "expected"], rows)


def _row(what: str, axis: str, values: Sequence[tuple[float, float]], expected: str) -> list[str]:
    xs, ys = [x for x, _ in values], [y for _, y in values]
    fitted = growth(xs, ys)
    measured = f"{ys[0]:.4g} to {ys[-1]:.4g} (x {xs[0]:g} to {xs[-1]:g})"
    return [what, axis, "one point only" if fitted is None else fitted.text(), measured, expected]


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", default=list(AXES), choices=AXES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES))
    for axis in AXES:
        parser.add_argument(f"--{axis}", nargs="+", type=int, metavar="X", help=f"places on the axis {axis}")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer along the batch")
    parser.add_argument("--rounds", type=int, default=2, help="answers of every way along the batch")
    parser.add_argument("--step-batches", nargs="+", type=int, default=[1, 32], help="of MGAP's step alone")
    parser.add_argument("--step-vocabulary", type=int, help="of MGAP's step along K")
    parser.add_argument("--width", type=int, help="of states, for MGAP's step and for fitting")
    parser.add_argument("--bank-width", type=int)
    parser.add_argument("--queries", type=int, help="states whose d_k is measured")
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds; after a slower n or bank, larger ones are skipped"
    )
    parser.add_argument("--out", help="a folder for growth.json and the figures")
    parser.add_argument("--from", dest="source", help="a growth.json: print and draw it again without measuring")
    args = parser.parse_args(arguments)
    for name, value in (LARGE if args.device.startswith("cuda") else SMALL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    for axis in AXES:
        if min(getattr(args, axis)) < 1:
            parser.error(f"--{axis} must be whole numbers of at least 1")
        setattr(args, axis, sorted(set(getattr(args, axis))))
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    args = read_arguments(arguments)
    if args.source:
        header, points = read(args.source)
    else:
        header = {
            "run": about(args.device),
            "rank": RANK,
            **{k: v for k, v in vars(args).items() if k not in ("source", "out")},
        }

        def keep(group: list[Point]) -> None:
            if args.out:
                write(Path(args.out) / "growth.json", header, group)

        print(header["run"])
        started = time.perf_counter()
        points = measure(args, keep)
        print(f"\nmeasured in {time.perf_counter() - started:.0f} s")
    if args.out:
        for figure in draw(points, header["run"]):
            for path in figure.save(args.out):
                print(path)
    print(f"\n{header['run']}\n\n{summary(points)}", flush=True)


if __name__ == "__main__":
    main()
