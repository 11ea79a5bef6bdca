"""The engine: goes through a run's batches, writes every batch down, survives what can go wrong, and can be taken up again.

Batches are fixed by the plan: samples in its order, cut into equal batches, dealt out to the shares in turn. So a run that was
killed, or that several processes did, answers the same batches as one that was not, and says the same.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from mgap.backbones.clock import WRITING, Clock
from mgap.errors import ImageError, PromptError
from mgap.run.folder import Journal, Shard, claim
from mgap.run.records import Record, Run, RunMethod
from mgap.run.worker import Prefetching, Work, Worker
from mgap.types import Sample

Batch = tuple[Sample, ...]


@dataclass
class RunState:
    """How far one method is; a listener is given this after every batch."""

    method: RunMethod
    total: int  # samples of this share
    before: int = 0  # of them, answered by an earlier process
    done: int = 0
    failed: int = 0
    tokens: int = 0  # of this process's answers
    seconds: float = 0.0  # of this process's work
    latest: tuple[Batch, Sequence[Record]] = ((), ())  # the batch just done

    @property
    def seconds_left(self) -> float | None:
        fresh = self.done - self.before
        return None if fresh == 0 else self.seconds / fresh * (self.total - self.done)


@dataclass(frozen=True)
class Spent:
    """Where the time of one method went, in this process."""

    samples: int
    seconds: float
    stages: dict[str, float]  # seconds each; what they leave of the whole is the loop itself


@dataclass(frozen=True)
class Summary:
    """What a process found and did."""

    answered: dict[str, int] = field(default_factory=dict)  # by label; by anyone, in this share
    failed: dict[str, list[Record]] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)  # by label; where a clock was on and something was answered


Listener = Callable[[RunState], None]


def batches(samples: Sequence[Sample], size: int, order: Sequence[str] = ()) -> list[Batch]:
    """Samples in the order of these ids; without them in the order in which pictures first appear, those of one together."""
    places = {name: place for place, name in enumerate(order or dict.fromkeys(sample.image for sample in samples))}
    sorted_ = sorted(samples, key=lambda sample: places[sample.id if order else sample.image])
    return [tuple(sorted_[start : start + size]) for start in range(0, len(sorted_), size)]


def execute(
    run: Run,
    worker: Worker,
    *,
    shard: Shard = Shard(),  # noqa: B008  immutable
    labels: Sequence[str] | None = None,
    retry_failed: bool = False,
    listener: Listener | None = None,
    clock: Clock | None = None,
) -> Summary:
    """Answer what is not answered yet of this share; `labels` are the methods to go through, by default all of the run's.

    `clock` is the model's, where the time is to be told stage by stage.
    """
    summary = Summary()
    share = batches(run.samples, int(run.plan["batch_size"]), run.order)[shard.number :: shard.of]
    with ExitStack() as stack:
        stack.enter_context(claim(run.folder, shard))
        if isinstance(worker, Prefetching):
            stack.enter_context(worker.prefetching())
        for method in run.methods:
            if labels is None or method.label in labels:
                _execute_method(run, worker, method, share, shard, retry_failed, listener, summary, clock or Clock())
    return summary


def _execute_method(
    run: Run,
    worker: Worker,
    method: RunMethod,
    share: list[Batch],
    shard: Shard,
    retry_failed: bool,
    listener: Listener | None,
    summary: Summary,
    clock: Clock,
) -> None:
    found = run.records(method)
    kept = {name: record for name, record in found.items() if not (retry_failed and record.failed)}
    ids = [sample.id for batch in share for sample in batch]
    state = RunState(method, len(ids), before=sum(name in kept for name in ids))
    state.done = state.before
    state.failed = sum(bool(kept[name].failed) for name in ids if name in kept)
    todo = [batch for batch in share if any(sample.id not in kept for sample in batch)]
    if todo:
        with Journal(run.folder, method, shard) as journal, worker.using(method) as work:
            if run.plan["warm_up"]:
                _careful(work, todo[0])
            clock.take()  # what came before does not count
            started = time.perf_counter()
            if isinstance(worker, Prefetching):
                worker.prefetch(todo)
            state.seconds += time.perf_counter() - started
            for batch in todo:
                started = time.perf_counter()
                made = _careful(work, batch)  # the whole batch, so that a cut-off one is answered as it would have been
                fresh = [record for record in made if record.id not in kept]
                with clock.stage(WRITING):
                    journal.write(fresh)
                kept.update({record.id: record for record in fresh})
                state.done += len(fresh)
                state.failed += sum(bool(record.failed) for record in fresh)
                state.tokens += sum(record.tokens for record in fresh)
                state.seconds += time.perf_counter() - started
                state.latest = (batch, made)
                if listener is not None:
                    listener(state)
        if clock.is_on:
            summary.spent[method.label] = Spent(state.done - state.before, state.seconds, clock.take())
    elif listener is not None:
        listener(state)
    ours = [kept[name] for name in ids]
    summary.answered[method.label] = sum(not record.failed for record in ours)
    summary.failed[method.label] = [record for record in ours if record.failed]


def _careful(work: Work, batch: Sequence[Sample]) -> list[Record]:
    """A batch that does not fit into memory is halved until it does; a sample that cannot be asked is written down as such.

    Any other error ends the run; nothing that is on disk is lost.
    """
    try:
        return work(batch)
    except (ImageError, PromptError) as error:
        reason = f"{type(error).__name__}: {error}"
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = "out of memory, alone in its batch"
    free_memory()  # here, because the error holds the batch's tensors until its block is left
    if len(batch) == 1:
        return [Record(batch[0].id, failed=reason)]
    middle = len(batch) // 2
    return [*_careful(work, batch[:middle]), *_careful(work, batch[middle:])]


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_memory() -> None:
    """Of what nothing refers to any more, on the GPU too."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
