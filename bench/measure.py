"""Timing for all benchmarks: in turns, with an idle device at both ends, as medians with quartiles; and memory bandwidth.

    rounds = in_turns({"plain": plain, "fused": fused}, 7, clock=lambda call: seconds(call, "cuda"))
    print(spread(column(rounds, "fused")), spread(ratios(rounds, "fused", "plain")))

Ways under comparison take turns in every round, and a ratio uses two times from the same round. So the machine's other load and
the card's temperature affect all of them alike.
"""

from __future__ import annotations

import gc
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

import torch

GIB = 1 << 30

Measured = TypeVar("Measured")
Numbers = Mapping[str, float]


class Spread(NamedTuple):
    """A median between its quartiles."""

    low: float
    middle: float
    high: float

    def text(self, digits: int = 2, unit: str = "") -> str:
        return f"{self.middle:.{digits}f}{unit} ({self.low:.{digits}f} to {self.high:.{digits}f})"


class Bandwidth(NamedTuple):
    """Measured bytes per second."""

    copied: float  # a large copy: bytes read plus bytes written
    read: float  # a large sum

    @property
    def best(self) -> float:
        return max(self)


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(*(values[0] for _ in range(3)))
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def synchronize(device: str | torch.device) -> None:
    """Wait until the device is idle."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def timestamp(device: str | torch.device) -> Any:
    """An event in the device's queue; on a CPU, the time."""
    if torch.device(device).type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_ms(one: Any, other: Any) -> float:
    """Milliseconds between two timestamps; the device must have reached both."""
    return 1000 * (other - one) if isinstance(one, float) else float(one.elapsed_time(other))


def seconds(call: Callable[[], object], device: str | torch.device) -> float:
    """Seconds of one call, with the device idle before and after it."""
    synchronize(device)
    started = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - started


@contextmanager
def without_gc() -> Iterator[None]:
    """Collect garbage, then turn collection off inside the block."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def in_turns(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[Callable[[], object]], Measured],
    seldom: Mapping[str, int] | None = None,
    limit_s: float | None = None,
    label: str = "",
) -> list[dict[str, Measured]]:
    """Apply `clock` to every way in every round; each round starts with another way. Warm up before.

    A way in `seldom` takes part only in the first so many rounds. With `limit_s`, a round that would end later, judging by its
    ways' last times, skips those of `seldom`; if that does not suffice, the rounds end. With a label, progress is one line on
    standard error.
    """
    rare, cost, results = dict(seldom or {}), dict[str, float](), list[dict[str, Measured]]()
    started = time.perf_counter()
    for number in range(rounds):
        spent = time.perf_counter() - started
        names = [name for name in ways if number < rare.get(name, rounds)]
        if limit_s is not None and results and spent + sum(cost[name] for name in names) > limit_s:
            names = [name for name in names if name not in rare]
            if not names or spent + sum(cost[name] for name in names) > limit_s:
                break
        if label:
            say(f"{label}: round {number + 1} of {rounds}, {spent:.0f} s")
        results.append({})
        first = number % len(names)
        with without_gc():
            for name in names[first:] + names[:first]:
                before = time.perf_counter()
                results[-1][name] = clock(ways[name])
                cost[name] = time.perf_counter() - before
    if label:
        say("")
    return results


def column(rounds: Sequence[Numbers], name: str) -> list[float]:
    """One way's numbers, from the rounds that it took part in."""
    return [numbers[name] for numbers in rounds if name in numbers]


def ratios(rounds: Sequence[Numbers], name: str, base: str) -> list[float]:
    """A way's numbers relative to the base's, round by round."""
    return [numbers[name] / numbers[base] for numbers in rounds if name in numbers and base in numbers]


def median_seconds(call: Callable[[], object], device: str | torch.device, times: int = 10) -> float:
    """Median seconds of several calls in a row, after one that does not count."""
    call()
    with without_gc():
        return statistics.median(seconds(call, device) for _ in range(times))


def bandwidth(device: str | torch.device, size: int | None = None) -> Bandwidth:
    """Bandwidth of the device's memory, on random numbers of `size` bytes: by default 4 GiB on a GPU, 128 MiB on a CPU."""
    device = torch.device(device)
    size = size or (4 * GIB if device.type == "cuda" else GIB // 8)
    source = torch.rand(size // 4, device=device)  # float32
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device)
    read = source.nbytes / median_seconds(lambda: source.sum(), device)
    return Bandwidth(copied, read)


def alone(function: Callable[..., Measured], *given: Any) -> Measured:
    """A call in a process of its own, which gives back all that it held on the device."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def reset_peak(device: str | torch.device) -> None:
    """Reset the peak of a GPU's allocated memory."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def take_peak(device: str | torch.device) -> int | None:
    """Peak of a GPU's allocated bytes since the last reset, and reset it; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    peak = int(torch.cuda.max_memory_allocated(device))
    reset_peak(device)
    return peak


def peak_gib(device: str | torch.device = "cpu") -> float:
    """On a GPU, the peak allocated since `reset_peak`; on a CPU, the peak of the process (Linux counts KiB, macOS bytes)."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (GIB if sys.platform == "darwin" else 1 << 20)


def device_name(device: str | torch.device) -> str:
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def versions() -> dict[str, str]:
    """Versions of Python and of installed packages that times depend on."""
    numbers = {"python": platform.python_version()}
    for name in ("torch", "transformers", "triton"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            continue
    return numbers


def about(device: str | torch.device) -> str:
    """Date, device and versions in one line, for the top of a script's output."""
    parts = [f"{name} {number}" for name, number in versions().items()]
    return ", ".join([time.strftime("%Y-%m-%d"), device_name(device), *parts])


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    head, *body = ("| " + " | ".join(map(str, line)) + " |" for line in (heads, *rows))
    return "\n".join([head, "|---" * len(heads) + "|", *body])


def say(text: str) -> None:
    """Show progress on standard error, replacing the last line; an empty text clears it."""
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
