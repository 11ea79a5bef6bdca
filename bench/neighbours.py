"""Time and memory of tau and d_k in a large bank, and the error of an index, all from one run.

    python bench/neighbours.py --states 100000 --width 4096 --queries 3000

The bank is random: a low-rank part with falling variances, a little noise in all directions, and a mean far from the origin.
Queries are drawn alike, half of them moved away from the mean. The search is exact first, then through an index (FAISS). Peak
memory is the process's (ru_maxrss), including the bank; it can only grow from line to line. CPU seconds are of all threads: on
a shared machine they say more than the clock.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from measure import peak_gib
from torch import Tensor

from mgap.priors.bank import Bank
from mgap.priors.manifold import SEARCHES, Manifold


def draw(count: int, mix: Tensor, noise: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """States [count, d], a few thousand at a time."""
    states = torch.empty(count, mix.shape[1], dtype=dtype)
    for chunk in states.split(4096):
        low = torch.randn(len(chunk), len(mix), generator=generator) @ mix
        chunk.copy_(low + noise * torch.randn(chunk.shape, generator=generator) + 1)
    return states


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def spent(since: tuple[float, float], until: tuple[float, float]) -> str:
    return f"{until[0] - since[0]:.1f} ({until[1] - since[1]:.1f})"


def show(stage: str, done: int, total: int) -> None:
    print(f"\r{stage}: {done} of {total}   ", end="" if done < total else "\n", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--searches", nargs="+", default=["exact", "approximate"], choices=SEARCHES)
    args = parser.parse_args(arguments)
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(args.rank, args.width, generator=generator) * torch.arange(1, args.rank + 1).unsqueeze(1) ** -0.5
    bank = Bank.of(draw(args.states, mix, args.noise, generator, getattr(torch, args.dtype)))
    queries = draw(args.queries, mix, args.noise, generator, torch.float32)
    queries[::2] = 1 + 1.5 * (queries[::2] - 1)
    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    print(
        f"{args.states} states of width {args.width} in {args.dtype}, {args.queries} queries, k = {args.k}; {device}, ",
        end="",
    )
    print(f"torch {torch.__version__}, Python {platform.python_version()}; peak with the bank drawn {peak_gib():.2f} GiB\n")
    print("| search | tau (95%) | tau, s (CPU s) | d_k, s (CPU s) | peak, GiB | largest relative error of d_k | departed |")
    print("|---" * 7 + "|", flush=True)
    right = None
    for search in args.searches:
        started = clocks()
        manifold = Manifold.of(bank, k=args.k, device=args.device, search=search, progress=show)
        middle = clocks()
        distances = manifold.distances(queries).double().cpu()
        ended = clocks()
        right = distances if right is None and manifold.error is None else right
        off = "-" if right is None else f"{float(((distances - right) / right).abs().max()):.2g}"
        low, high = manifold.interval
        departed = int((distances > manifold.tau).sum())
        print(
            f"| {search} | {manifold.tau:.6g} ({low:.6g} to {'-' if high is None else f'{high:.6g}'}) "
            f"| {spent(started, middle)} | {spent(middle, ended)} | {peak_gib():.2f} | {off} | {departed} |"
        )
        if manifold.error is not None:
            print("index, on members: " + ", ".join(f"{name} {value:.4g}" for name, value in asdict(manifold.error).items()))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
