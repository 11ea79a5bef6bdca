"""How things are timed here: in turns, with the device idle at both ends, as medians with quartiles; and how fast memory is.

    rounds = in_turns({"plain": plain, "fused": fused}, 7, clock=lambda call: seconds(call, "cuda"))
    print(spread(column(rounds, "fused")), spread(ratios(rounds, "fused", "plain")))

Ways that are compared take turns in every round, and a ratio is of two times of the same round: what else the machine does, and
how warm the card is, hits all of them alike.
"""

from __future__ import annotations

import gc
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
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
    """Bytes a second, as measured."""

    copied: float  # a large copy: what is read and what is written
    read: float  # a large sum

    @property
    def best(self) -> float:
        return max(self)


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(*(values[0] for _ in range(3)))
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def finish(device: str | torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def mark(device: str | torch.device) -> Any:
    """This moment on the device, when it comes to it; on the host where that is the device."""
    if torch.device(device).type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_ms(one: Any, other: Any) -> float:
    """From one mark to another; the device must have come to both."""
    return 1000 * (other - one) if isinstance(one, float) else float(one.elapsed_time(other))


def seconds(call: Callable[[], object], device: str | torch.device) -> float:
    """Of one call, with the device idle before and after it."""
    finish(device)
    began = time.perf_counter()
    call()
    finish(device)
    return time.perf_counter() - began


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing is collected inside the block; it was before."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
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
    """What `clock` says of every way in every round; each round begins with another way. Warm up before.

    A way in `seldom` takes part in so many rounds only, from the first on. With `limit_s`, a round that would end later than
    that, by what its ways took the last time, goes without those of `seldom`; if it still would, there is none. With a label,
    progress is one line on standard error.
    """
    rare, cost, made = dict(seldom or {}), dict[str, float](), list[dict[str, Measured]]()
    began = time.perf_counter()
    for number in range(rounds):
        spent = time.perf_counter() - began
        names = [name for name in ways if number < rare.get(name, rounds)]
        if limit_s is not None and made and spent + sum(cost[name] for name in names) > limit_s:
            names = [name for name in names if name not in rare]
            if not names or spent + sum(cost[name] for name in names) > limit_s:
                break
        if label:
            say(f"{label}: round {number + 1} of {rounds}, {spent:.0f} s")
        made.append({})
        first = number % len(names)
        with undisturbed():
            for name in names[first:] + names[:first]:
                before = time.perf_counter()
                made[-1][name] = clock(ways[name])
                cost[name] = time.perf_counter() - before
    if label:
        say("")
    return made


def column(rounds: Sequence[Numbers], name: str) -> list[float]:
    """One way's numbers, of the rounds that it took part in."""
    return [found[name] for found in rounds if name in found]


def ratios(rounds: Sequence[Numbers], name: str, base: str) -> list[float]:
    """How many times the base's number a way's is, round by round."""
    return [found[name] / found[base] for found in rounds if name in found and base in found]


def median_seconds(call: Callable[[], object], device: str | torch.device, times: int = 10) -> float:
    """Of one call among several in a row, after a first one that does not count."""
    call()
    with undisturbed():
        return statistics.median(seconds(call, device) for _ in range(times))


def bandwidth(device: str | torch.device, size: int | None = None) -> Bandwidth:
    """Of the device's memory, from random numbers of `size` bytes: 4 GiB of a GPU, 128 MiB of a machine without one."""
    device = torch.device(device)
    size = size or (4 * GIB if device.type == "cuda" else GIB // 8)
    source = torch.rand(size // 4, device=device)  # float32
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device)
    read = source.nbytes / median_seconds(lambda: source.sum(), device)
    return Bandwidth(copied, read)


def forget_peak(device: str | torch.device) -> None:
    """Count the peak of a GPU's memory from here."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def take_peak(device: str | torch.device) -> int | None:
    """Bytes that a GPU had allocated at most since the peak was last forgotten or taken; None where there is none."""
    if torch.device(device).type != "cuda":
        return None
    peak = int(torch.cuda.max_memory_allocated(device))
    forget_peak(device)
    return peak


def peak_gib(device: str | torch.device = "cpu") -> float:
    """A GPU: what was allocated at most since `forget_peak`. Else the process's own so far (Linux says KiB, macOS bytes)."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (GIB if sys.platform == "darwin" else 1 << 20)


def device_name(device: str | torch.device) -> str:
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def versions() -> dict[str, str]:
    """Of what times depend on; a package that is not here is left out."""
    found = {"python": platform.python_version()}
    for name in ("torch", "transformers", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def about(device: str | torch.device) -> str:
    """Date, device and versions in one line, for the top of what a script prints."""
    parts = [f"{name} {number}" for name, number in versions().items()]
    return ", ".join([time.strftime("%Y-%m-%d"), device_name(device), *parts])


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    head, *body = ("| " + " | ".join(map(str, line)) + " |" for line in (heads, *rows))
    return "\n".join([head, "|---" * len(heads) + "|", *body])


def say(text: str) -> None:
    """Progress on standard error, in place of the last; an empty text wipes it."""
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
