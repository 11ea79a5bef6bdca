"""What the engine drives: something that turns samples into records under one method after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from mgap.reports.records import Arm, Record
from mgap.types import Sample

Work = Callable[[Sequence[Sample]], list[Record]]  # a batch in, a record each out, in order; raises if the batch failed


class Worker(Protocol):
    """Has the model; knows nothing of folders, resuming, shards or progress."""

    def using(self, arm: Arm) -> AbstractContextManager[Work]:
        """Switch the arm's method on for the length of a `with` block."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A worker that can begin with a batch's pictures before the batch has its turn."""

    def foreseeing(self) -> AbstractContextManager[None]:
        """Around all methods of a run: what `expect` starts goes on from one to the next, and ends with this block."""
        ...

    def expect(self, batches: Iterable[Sequence[Sample]]) -> None:
        """These come, in this order; called while an arm's method is on."""
        ...
