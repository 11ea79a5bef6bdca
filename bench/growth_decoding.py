"""How a decoding step grows with the batch and with the length of the answer: vanilla, MGAP, and VCD with its second branch.

Vanilla and MGAP take turns inside one answer, a few steps each: they meet the same cache, the same clocks and the same memory.
MGAP's hook is the one that `model.using` puts on. VCD has rows of its own, so its answers take turns with those. A step is from
one chosen token to the next, between events on the device; the prompt's own forward is the way "first token". Memory is the
peak of these steps (or of the first token) beyond what the device held before: weights, mostly.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from floor import cache_bytes, weights_read
from growth_points import Point
from measure import between_ms, finish, forget_peak, in_turns, mark, say, spread, undisturbed
from shapes import picture
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

import mgap
from mgap.decoding.generate import generate
from mgap.methods.base import Method, Tap
from mgap.methods.lanes import lanes_of, on_main_rows
from mgap.methods.mgap import Correction
from mgap.types import Decoding

QUESTION = "Describe this image in detail."
NOWHERE = 1 << 30  # a token that is never made: no answer ends early
RANK = 5  # of the prior
TURN = 2  # steps that a way has in a row
SKIPPED = 2 * TURN  # steps at the beginning that do not count: a turn of each way
BOTH = ("vanilla", "mgap")
MIB = 1 << 20


@dataclass
class Timed:
    """One answer: milliseconds of its steps and the device's peak in them, by way; the first token is a way of its own."""

    ms: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # which step, from 1, and how long it took
    peak: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # bytes

    def of(self, way: str, first: int, last: int) -> list[float]:
        return [ms for step, ms in self.ms.get(way, []) if first < step <= last]

    def mib(self, way: str, first: int, last: int, held: int) -> float | None:
        found = [peak for step, peak in self.peak.get(way, []) if first < step <= last]
        return (max(found) - held) / MIB if found else None


class Steps(StoppingCriteria):
    """Notes when each token was chosen, and gives the ways their turns."""

    def __init__(self, device: torch.device, ways: Sequence[str], switch: Callable[[str], None]) -> None:
        self.device, self.ways, self.switch = device, ways, switch
        self.marks: list[tuple[str, Any, Any]] = []  # the way, and where its step began and ended
        self.peaks: list[int] = []
        self.way, self.began = "first token", mark(self.device)

    def __call__(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        self.marks.append((self.way, self.began, mark(self.device)))
        if self.device.type == "cuda":
            self.peaks.append(torch.cuda.max_memory_allocated(self.device))
            forget_peak(self.device)
        now = self.ways[(len(self.marks) - 1) // TURN % len(self.ways)]
        if now != self.way:
            self.switch(now)
        self.way, self.began = now, mark(self.device)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def read(self) -> Timed:
        finish(self.device)
        found = Timed()
        for step, (way, began, ended) in enumerate(self.marks):
            found.ms.setdefault(way, []).append((step, between_ms(began, ended)))
            if self.peaks:
                found.peak.setdefault(way, []).append((step, self.peaks[step]))
        return found


class Bench:
    """A model with all that its axes need."""

    def __init__(self, name: str, model: mgap.Model, bandwidth: float) -> None:
        self.name, self.model, self.backbone, self.bandwidth = name, model, model.backbone, bandwidth
        self.backbone.model.generation_config.eos_token_id = NOWHERE
        self.device = self.backbone.device
        width = self.backbone.identity.hidden_size
        states = torch.randn(4 * RANK, width, generator=torch.Generator().manual_seed(0))
        self.method = mgap.MGAP(mgap.Subspace.from_states(states, RANK))
        self.head = self.backbone.probe_head()
        correction = Correction(self.method.subspace.basis, self.head, self.method.settings, Tap())
        self.hook = on_main_rows(correction, lanes_of(self.backbone.model))
        inputs = self.encode(1)
        self.prompt = inputs["input_ids"].shape[1]  # tokens, the picture's included
        self.token_bytes = cache_bytes(self.backbone, inputs) / self.prompt
        self.held = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def encode(self, rows: int) -> dict[str, Tensor]:
        """The same picture and question in each row; tiny models see a tiny one."""
        shown = picture(size=(64, 64) if self.name.startswith("tiny") else (640, 480))
        return self.backbone.encode([shown] * rows, [QUESTION] * rows)

    def answer(self, rows: int, tokens: int, ways: Sequence[str], method: Method | None = None) -> Timed:
        """One answer of so many tokens; of its ways, "mgap" has the hook on the head."""
        inputs = self.encode(rows)
        with ExitStack() as stack:
            stack.enter_context(self.model.using(method) if method is not None else nullcontext())
            hooks = stack.enter_context(ExitStack())

            def switch(way: str) -> None:
                hooks.close()
                if way == "mgap":
                    hooks.callback(self.head.module.register_forward_hook(self.hook).remove)

            forget_peak(self.device)
            steps = Steps(self.device, ways, switch)
            stop = StoppingCriteriaList([steps])
            generate(self.backbone, inputs, Decoding(max_new_tokens=tokens), stopping_criteria=stop)
            return steps.read()

    def floor_ms(self, rows: int, cached: int) -> float:
        """Weights of the decoder and the head, and the cache of so many tokens a row, read once."""
        return 1000 * (weights_read(self.backbone, rows) + rows * cached * self.token_bytes) / self.bandwidth

    def point(
        self,
        axis: str,
        way: str,
        x: int,
        answers: Sequence[Timed],
        base: Sequence[Timed] | None,
        first: int,
        last: int,
        floor_ms: float | None,
    ) -> Point:
        """From the steps after `first` and up to `last`; `base` has vanilla's, answer by answer."""
        low, middle, high = spread([ms for answer in answers for ms in answer.of(way, first, last)])
        peaks = [mib for answer in answers if (mib := answer.mib(way, first, last, self.held)) is not None]
        ratio = None
        if base is not None:
            pairs = [(a.of(way, first, last), b.of("vanilla", first, last)) for a, b in zip(answers, base, strict=True)]
            ratio = statistics.median(statistics.median(mine) / statistics.median(plain) for mine, plain in pairs)
        return Point(axis, self.name, way, x, middle, low, high, ratio, max(peaks, default=None), floor_ms)


def along_batch(bench: Bench, batches: Sequence[int], tokens: int, rounds: int) -> Iterator[Point]:
    """Steps of answers in larger and larger batches, and the first token."""
    vcd, fewer = mgap.VCD(), max(tokens // 2, SKIPPED + 2)
    ways: dict[str, Callable[[int], Timed]] = {
        "both": lambda rows: bench.answer(rows, tokens, BOTH),
        "vcd": lambda rows: bench.answer(rows, fewer, ("vcd",), vcd),
    }
    for way in ways.values():
        way(batches[0])  # what is slow the first time only
    for rows in batches:
        calls = {name: partial(way, rows) for name, way in ways.items()}
        try:
            made = in_turns(calls, rounds, clock=lambda call: call(), label=f"{bench.name}, batch of {rows}")
        except torch.cuda.OutOfMemoryError:
            say("")
            print(f"{bench.name}: a batch of {rows} does not fit into memory; larger ones are left out", flush=True)
            return
        answers = [found["both"] for found in made]
        branched = [found["vcd"] for found in made]
        floors = [bench.floor_ms(times * rows, bench.prompt + tokens // 2) for times in (1, 2)]
        yield bench.point("batch", "vanilla", rows, answers, answers, SKIPPED, tokens, floors[0])
        yield bench.point("batch", "mgap", rows, answers, answers, SKIPPED, tokens, floors[0])
        yield bench.point("batch", "vcd", rows, branched, answers, SKIPPED, tokens, floors[1])
        yield bench.point("batch", "first token", rows, answers, None, -1, 0, None)


def along_length(bench: Bench, lengths: Sequence[int]) -> Iterator[Point]:
    """Steps of one answer that grows long, each length from the quarter before it (16 steps at least)."""
    bench.answer(1, SKIPPED + 2, BOTH)
    say(f"{bench.name}: an answer of {max(lengths)} tokens")
    with undisturbed():
        answers = [bench.answer(1, max(lengths) + 1, BOTH)]
    say("")
    for length in lengths:
        first = max(length - max(16, length // 4), 0)
        for way in BOTH:
            yield bench.point("length", way, length, answers, answers, first, length, bench.floor_ms(1, bench.prompt + length))
