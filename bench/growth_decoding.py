"""How a decoding step grows with batch size and answer length: vanilla, MGAP, and VCD with its second branch.

Times are of captured steps (`static_cache=True`), which the device limits, not the host. Memory is of eager decoding, whose
cache is as long as the answer. Vanilla and MGAP alternate inside one answer (bench/marks.py); VCD has extra rows, and its
answers take turns with theirs. The prefill is the way "first token". Memory is the peak of the steps (or of the first token)
minus what was allocated before, mostly weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from cases import Case, make_endless
from floor import cache_bytes, weights_read
from growth_points import Point
from marks import TRAILING, TURN, Step, StepTimer
from measure import in_turns, say, spread, without_gc
from shapes import picture
from torch import Tensor

import mgap
from mgap.decoding.fast.captured_step import forget
from mgap.methods.base import Method, Tap
from mgap.methods.kinds.main_rows import Hook, on_main_rows, row_split_of
from mgap.methods.mgap import Correction

QUESTION = "Describe this image in detail."
RANK = 5  # of the prior
FIRST = "first token"
BOTH = ("vanilla", "mgap")
SKIPPED = len(BOTH) * TURN  # first steps, not counted: one turn of each way
MIB = 1 << 20


class Answer:
    """The prefill and the steps of one answer."""

    def __init__(self, timer: StepTimer, tokens: int) -> None:
        self.steps = [Step(FIRST, 0, timer.prompt_ms, timer.prompt_peak), *timer.steps(tokens)]

    def of(self, way: str, first: int, last: int) -> list[Step]:
        """The steps after `first` and up to `last`."""
        return [step for step in self.steps if step.way == way and first < step.number <= last]

    def ms(self, way: str, first: int, last: int) -> list[float]:
        return [step.ms for step in self.of(way, first, last)]

    def mib(self, way: str, first: int, last: int, held: int) -> float | None:
        peaks = [step.peak for step in self.of(way, first, last) if step.peak is not None]
        return (max(peaks) - held) / MIB if peaks else None


class Bench:
    """A model with everything that its measurements need."""

    def __init__(self, name: str, model: mgap.Model, bandwidth: float) -> None:
        self.name, self.model, self.backbone, self.bandwidth = name, model, model.backbone, bandwidth
        make_endless(model)
        self.device = self.backbone.device
        width = self.backbone.identity.hidden_size
        states = torch.randn(4 * RANK, width, generator=torch.Generator().manual_seed(0))
        self.method = mgap.MGAP(mgap.Subspace.from_states(states, RANK))
        correction = Correction(self.method.subspace.basis, self.backbone.probe_head(), self.method.settings, Tap())
        self.hook = on_main_rows(correction, row_split_of(self.backbone.model))
        inputs = self.encode(1)
        self.prompt = inputs["input_ids"].shape[1]  # tokens, including the picture's
        self.token_bytes = cache_bytes(self.backbone, inputs) / self.prompt
        self.held = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def encode(self, rows: int) -> dict[str, Tensor]:
        """Rows with the same picture and question; tiny models get a tiny picture."""
        image = picture(size=(64, 64) if self.name.startswith("tiny") else (640, 480))
        return self.backbone.encode([image] * rows, [QUESTION] * rows)

    def answer(self, rows: int, tokens: int, ways: Sequence[str], method: Method | None = None, static: bool = True) -> Answer:
        """One answer of so many tokens, in which `ways` alternate; "mgap" has the hook on the head."""
        hooks: dict[str, Hook | None] = {way: self.hook if way == "mgap" else None for way in ways}
        case = Case(self.model, self.encode(rows), tokens, {"static_cache": True} if static else {})
        with case.using(method), StepTimer(self.backbone, hooks) as timer:
            case.answer(tokens)
        return Answer(timer, tokens)

    def floor_ms(self, rows: int, cached: int) -> float:
        """The time to read the weights of the decoder and the head, and the cache of so many tokens per row, once."""
        return 1000 * (weights_read(self.backbone, rows) + rows * cached * self.token_bytes) / self.bandwidth

    def point(
        self,
        axis: str,
        way: str,
        x: int,
        answers: Sequence[Answer],
        base: Sequence[Answer] | None,
        eager: Answer,
        within: tuple[int, int],
        floor_ms: float | None,
    ) -> Point:
        """From the steps after `within[0]` up to `within[1]`; `base` has vanilla's steps by answer, `eager` the memory."""
        low, middle, high = spread([ms for answer in answers for ms in answer.ms(way, *within)])
        ratio = None
        if base is not None:
            pairs = [(a.ms(way, *within), b.ms("vanilla", *within)) for a, b in zip(answers, base, strict=True)]
            ratio = statistics.median(statistics.median(mine) / statistics.median(plain) for mine, plain in pairs)
        return Point(axis, self.name, way, x, middle, low, high, ratio, eager.mib(way, *within, self.held), floor_ms)


def along_batch(bench: Bench, batches: Sequence[int], tokens: int, rounds: int) -> Iterator[Point]:
    """Steps of answers and first tokens in larger and larger batches."""
    vcd, steps = mgap.VCD(), (SKIPPED, tokens - TRAILING)
    ways: dict[str, Callable[..., Answer]] = {
        "both": lambda rows, **how: bench.answer(rows, tokens, BOTH, **how),
        "vcd": lambda rows, **how: bench.answer(rows, tokens, ("vcd",), vcd, **how),
    }
    for rows in batches:
        calls = {name: partial(way, rows) for name, way in ways.items()}
        try:
            say(f"{bench.name}, batch of {rows}: memory")
            eager = {name: call(static=False) for name, call in calls.items()}
            for call in calls.values():
                call()  # captures the step
            timed = in_turns(calls, rounds, clock=lambda call: call(), label=f"{bench.name}, batch of {rows}")
        except torch.cuda.OutOfMemoryError:
            say("")
            print(f"{bench.name}: a batch of {rows} does not fit into memory; larger ones are left out", flush=True)
            return
        finally:
            forget(bench.backbone.model)  # frees memory for the next size
        answers = [answer["both"] for answer in timed]
        branched = [answer["vcd"] for answer in timed]
        floors = [bench.floor_ms(times * rows, bench.prompt + tokens // 2) for times in (1, 2)]
        yield bench.point("batch", "vanilla", rows, answers, answers, eager["both"], steps, floors[0])
        yield bench.point("batch", "mgap", rows, answers, answers, eager["both"], steps, floors[0])
        yield bench.point("batch", "vcd", rows, branched, answers, eager["vcd"], steps, floors[1])
        yield bench.point("batch", FIRST, rows, answers, None, eager["both"], (-1, 0), None)


def along_length(bench: Bench, lengths: Sequence[int]) -> Iterator[Point]:
    """Steps of one long answer; each length uses the quarter before it (at least 16 steps)."""
    tokens = max(lengths) + 1 + TRAILING
    say(f"{bench.name}: an answer of {max(lengths)} tokens")
    bench.answer(1, SKIPPED + TRAILING, BOTH)
    with without_gc():
        eager = bench.answer(1, tokens, BOTH, static=False)
        bench.answer(1, tokens, BOTH)  # captures the step
        answers = [bench.answer(1, tokens, BOTH)]
    forget(bench.backbone.model)
    say("")
    for length in lengths:
        within = (max(length - max(16, length // 4), 0), length)
        floor = bench.floor_ms(1, bench.prompt + length)
        for way in BOTH:
            yield bench.point("length", way, length, answers, answers, eager, within, floor)
