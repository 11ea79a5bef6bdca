"""What the engine drives: something that turns samples into records under one method after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mgap.errors import SettingError
from mgap.run.records import Record, RunMethod
from mgap.types import Sample

if TYPE_CHECKING:
    from mgap.run.config import Config

Work = Callable[[Sequence[Sample]], list[Record]]  # a batch in, a record each out, in order; raises if the batch failed


class Worker(Protocol):
    """Has the model; knows nothing of folders, resuming, shards or progress."""

    def using(self, method: RunMethod) -> AbstractContextManager[Work]:
        """Switch the method on for the length of a `with` block."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A worker that can begin with a batch's pictures before the batch has its turn."""

    def foreseeing(self) -> AbstractContextManager[None]:
        """Around all methods of a run: what `expect` starts goes on from one to the next, and ends with this block."""
        ...

    def expect(self, batches: Iterable[Sequence[Sample]]) -> None:
        """These come, in this order; called while a method is on."""
        ...


class RunEngine(Protocol):
    """What makes a worker, by the name that a run's key `engine` has."""

    @staticmethod
    def refuse(config: Config, /) -> None:
        """Raise if a run asks for what this engine does not do; nothing is loaded yet."""
        ...

    @staticmethod
    def require(config: Config, /, *, is_launched: bool) -> None:
        """Raise if what it needs is not installed; `is_launched`: by accelerate or torchrun, in several processes."""
        ...


class TransformersEngine:
    """`mgap run` as it is by default."""

    @staticmethod
    def refuse(config: Config) -> None:
        """Raise if a run asks for something that is another engine's."""
        if config.engine_options:
            raise SettingError(
                f"engine_options are vLLM's, and the engine is {config.engine}: leave them out, or name engine vllm"
            )

    @staticmethod
    def require(config: Config, *, is_launched: bool) -> None:
        """Nothing beside this package's own dependencies."""
