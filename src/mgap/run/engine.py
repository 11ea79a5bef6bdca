"""The loop of a run: answer batch by batch, write each to disk, survive failures, and resume.

The plan fixes the batches: samples in its order, cut into equal batches, dealt to the shards in turn. A run that was killed, or
split over processes, therefore answers the same batches as any other, with the same answers.
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
    """Progress of one method. Listeners get it after every batch."""

    method: RunMethod
    total: int  # samples of this shard
    before: int = 0  # of these, answered by earlier processes
    done: int = 0
    failed: int = 0
    tokens: int = 0  # of this process's answers
    seconds: float = 0.0  # of this process's work
    latest: tuple[Batch, Sequence[Record]] = ((), ())  # the last batch and its records

    @property
    def seconds_left(self) -> float | None:
        answered = self.done - self.before
        return None if answered == 0 else self.seconds / answered * (self.total - self.done)


@dataclass(frozen=True)
class Spent:
    """Where the time of one method went, in this process."""

    samples: int
    seconds: float
    stages: dict[str, float]  # seconds per stage; the remainder is the loop itself


@dataclass(frozen=True)
class Summary:
    """The outcome of one process."""

    answered: dict[str, int] = field(default_factory=dict)  # by label: answers in this shard, of all processes so far
    failed: dict[str, list[Record]] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)  # by label, if a clock was on and something was answered


Listener = Callable[[RunState], None]


def batches(samples: Sequence[Sample], size: int, order: Sequence[str] = ()) -> list[Batch]:
    """Cut the samples into batches, in the order of these ids. Default: by first appearance of their picture.

    Questions without a picture are in batches of their own, after the others.
    """
    position = {name: number for number, name in enumerate(order or dict.fromkeys(sample.image for sample in samples))}
    sorted_ = sorted(samples, key=lambda sample: position[sample.id if order else sample.image])
    kinds = ([s for s in sorted_ if s.image], [s for s in sorted_ if not s.image])
    return [tuple(kind[start : start + size]) for kind in kinds for start in range(0, len(kind), size)]


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
    """Answer what is still unanswered in this shard. `labels` choose the methods; default: all of the run's.

    `clock` is the model's, to measure the time of each stage.
    """
    summary = Summary()
    shard_batches = batches(run.samples, int(run.plan["batch_size"]), run.order)[shard.number :: shard.of]
    with ExitStack() as stack:
        stack.enter_context(claim(run.folder, shard))
        if isinstance(worker, Prefetching):
            stack.enter_context(worker.prefetching())
        for method in run.methods:
            if labels is None or method.label in labels:
                _execute_method(run, worker, method, shard_batches, shard, retry_failed, listener, summary, clock or Clock())
    return summary


def _execute_method(
    run: Run,
    worker: Worker,
    method: RunMethod,
    shard_batches: list[Batch],
    shard: Shard,
    retry_failed: bool,
    listener: Listener | None,
    summary: Summary,
    clock: Clock,
) -> None:
    records = {name: record for name, record in run.records(method).items() if not (retry_failed and record.failed)}
    ids = [sample.id for batch in shard_batches for sample in batch]
    state = RunState(method, len(ids), before=sum(name in records for name in ids))
    state.done = state.before
    state.failed = sum(bool(records[name].failed) for name in ids if name in records)
    todo = [batch for batch in shard_batches if any(sample.id not in records for sample in batch)]
    if todo:
        with Journal(run.folder, method, shard) as journal, worker.using(method) as work:
            if run.plan["warm_up"]:
                _answer_batch(work, todo[0])
            clock.take()  # resets it
            started = time.perf_counter()
            if isinstance(worker, Prefetching):
                worker.prefetch(todo)
            state.seconds += time.perf_counter() - started
            for batch in todo:
                started = time.perf_counter()
                made = _answer_batch(work, batch)  # the whole batch: a resumed one gets the same answers
                fresh = [record for record in made if record.id not in records]
                with clock.stage(WRITING):
                    journal.write(fresh)
                records.update({record.id: record for record in fresh})
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
    ours = [records[name] for name in ids]
    summary.answered[method.label] = sum(not record.failed for record in ours)
    summary.failed[method.label] = [record for record in ours if record.failed]


def _answer_batch(work: Work, batch: Sequence[Sample]) -> list[Record]:
    """Answer a batch. One that does not fit into memory is halved until it does; a sample that cannot be asked is recorded.

    Any other error ends the run. Nothing on disk is lost.
    """
    try:
        return work(batch)
    except (ImageError, PromptError) as error:
        reason = f"{type(error).__name__}: {error}"
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = "out of memory, alone in its batch"
    free_memory()  # not inside `except`: the error still holds the batch's tensors there
    if len(batch) == 1:
        return [Record(batch[0].id, failed=reason)]
    middle = len(batch) // 2
    return [*_answer_batch(work, batch[:middle]), *_answer_batch(work, batch[middle:])]


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_memory() -> None:
    """Collect garbage, and empty the GPU cache."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
