"""Engines and workers: an engine loads a model for a run; its worker turns samples into records, method by method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.run.records import Record, Run, RunMethod
from mgap.types import Sample

if TYPE_CHECKING:
    from mgap.run.config import Config
    from mgap.run.job import Job

Work = Callable[[Sequence[Sample]], list[Record]]  # a batch to its records, in order; raises if the batch failed
Notify = Callable[[str], None]  # called with a line of text for the user


class Worker(Protocol):
    """Holds the model. Folders, resuming, shards and progress are not its business."""

    def using(self, method: RunMethod) -> AbstractContextManager[Work]:
        """Switch the method on for the length of a `with` block."""
        ...


@runtime_checkable
class Prefetching(Protocol):
    """A worker that can prepare pictures before the batch that needs them."""

    def prefetching(self) -> AbstractContextManager[None]:
        """Surrounds all methods of a run. What `prefetch` starts carries over between methods and ends with this block."""
        ...

    def prefetch(self, batches: Iterable[Sequence[Sample]]) -> None:
        """Announce the coming batches, in order. Called while a method is on."""
        ...


@runtime_checkable
class Closing(Protocol):
    """A worker that must be closed after the run, such as one with processes of its own."""

    def close(self) -> None:
        """Free what the worker holds."""
        ...


class RunEngine(Protocol):
    """Makes the worker of a run. A run's key `engine` names it.

    It may say `batch_size`, the default of its runs, and `prior`, for methods whose run names none (as a run's file says it).
    """

    @staticmethod
    def refuse(config: Config, /) -> None:
        """Raise if the config asks for something this engine cannot do. Nothing is loaded yet."""
        ...

    @staticmethod
    def require(config: Config, /, *, is_launched: bool) -> None:
        """Raise if something it needs is not installed. `is_launched`: accelerate or torchrun started several processes."""
        ...

    @staticmethod
    def begin(job: Job, /, *, progress: Progress | None, note: Notify, status: Notify) -> tuple[Run, Worker]:
        """Load the model, make or join the run's folder (`Job.open`), and return the run with its worker.

        `note` takes what the user should know about the run, `status` what is happening now.
        """
        ...


class TransformersEngine:
    """The default engine."""

    @staticmethod
    def refuse(config: Config) -> None:
        """Raise if the config holds another engine's options."""
        if config.engine_options:
            raise SettingError(
                f"engine {config.engine} has no engine_options: leave them out, or name the engine that they are of"
            )

    @staticmethod
    def require(config: Config, *, is_launched: bool) -> None:
        """This package's own dependencies are enough."""

    @staticmethod
    def begin(job: Job, *, progress: Progress | None, note: Notify, status: Notify) -> tuple[Run, Worker]:
        """Load the model onto this process's device, then `Job.begin`."""
        from mgap.backbones.clock import Clock
        from mgap.decoding.model import load
        from mgap.run.job import launched_device

        config = job.config
        device = launched_device(config.device)
        job.start_picture_server(device)
        status(f"loading {config.model}")
        where = {"device": device, "revision": config.revision, "template": config.template}
        model = load(config.model, dtype=config.dtype, trust_remote_code=config.trust_remote_code, **where)
        run, worker = job.begin(model, progress=progress, note=note)
        if config.profile:
            model.backbone.clock = Clock(model.backbone.device)
        return run, worker
