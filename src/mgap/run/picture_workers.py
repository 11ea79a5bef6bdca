"""Pictures of a run, opened and prepared before their batch has its turn: in processes of their own, so that no GPU waits.

    with Pictures(PictureOpening(benchmark.picture, Preparer.of(backbone)), workers=8, device=backbone.device) as pictures:
        pictures.prefetch(names)              # in the order in which they will be asked for
        ready = pictures.take(names[:10])   # by name: a picture, or why there is none

Torch's DataLoader runs the processes: they prepare a few pictures ahead of what was taken, no more, and end with this one.
They are forked from a server process that has imported what they need, once for all of them; `start_server` starts it in the
background, before a model is loaded.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader

from mgap.backbones.prepared_pictures import Prepared, Preparer, picture_digest
from mgap.errors import ImageError, RunError, SettingError
from mgap.io.images import ImageSource, open_image

MOST = 8  # processes that auto starts; more do not shorten a run that one GPU answers
FEW = 200  # pictures, up to which auto starts none: they take seconds to start
AHEAD = 4  # pictures that every process may be ahead
ROOM = 1 << 29  # bytes of shared memory that auto wants to find free
SHARED_MEMORY = Path("/dev/shm")
IMPORTED = (  # before a processor is known: nearly all that workers of any family import
    "mgap.run.picture_workers",
    "mgap.benchmarks.picture_folder",
    "mgap.backbones.loading",
    "transformers.processing_utils",
    "transformers.image_processing_backends",
    "transformers.tokenization_utils_tokenizers",
)


@dataclass(frozen=True)
class Ready:
    """A picture that can be shown: prepared, or only opened where its family's processor needs the prompt beside it."""

    picture: Prepared | Image.Image
    digest: str  # SHA-256 of its pixels

    def pin_memory(self) -> Ready:
        """The DataLoader calls this for a GPU."""
        return replace(self, picture=self.picture.pin_memory()) if isinstance(self.picture, Prepared) else self

    def clone(self) -> Ready:
        return replace(self, picture=self.picture.clone()) if isinstance(self.picture, Prepared) else self


class PictureOpening:
    """From a picture's name to the picture, or to the sentence that says why it cannot be shown."""

    def __init__(self, picture: Callable[[str], ImageSource], preparer: Preparer | None) -> None:
        self.picture, self.preparer = picture, preparer

    @property
    def modules(self) -> list[str]:
        """What a process must import before it can open the first picture; seconds, so that it is done once for all."""
        parts: list[Any] = [self, self.picture]
        if self.preparer is not None:
            parts += [self.preparer, self.preparer.processor, *vars(self.preparer.processor).values()]
        return sorted({kind.__module__ for part in parts for kind in type(part).__mro__} - {"__main__"})

    def __getitem__(self, name: str) -> Ready | str:
        try:
            opened = open_image(self.picture(name))
            if self.preparer is None:
                return Ready(opened, picture_digest(opened))
            made = self.preparer(opened)
        except ImageError as error:
            return f"{type(error).__name__}: {error}"
        return Ready(made, made.digest)


class Pictures:
    """Hands out pictures by name, each prepared once as long as the next batch goes on with it."""

    def __init__(self, opening: PictureOpening, workers: int | str, device: torch.device) -> None:
        self.opening, self.workers, self.device = opening, workers, device
        self.held: dict[str, Ready | str] = {}  # of the last batch
        self._names: list[str] = []  # what the DataLoader goes through
        self._coming: deque[str] = deque()  # of them, what was not taken yet
        self._loader: DataLoader[Any] | None = None
        self._stream: Iterator[Any] = iter(())

    def __enter__(self) -> Pictures:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream, self._loader = iter(()), None  # processes end with the last reference to them
        self._coming.clear()
        self.held = {}

    def prefetch(self, names: Iterable[str]) -> None:
        """These will be taken, in this order; workers begin. Those that are there already go on with them, however few."""
        wanted = list(dict.fromkeys(names))
        count = _count(self.workers, self.device, len(wanted))
        if not wanted or (self._loader is None and count == 0):
            return
        self._names[:] = wanted
        self._coming = deque(wanted)
        if self._loader is None:
            self._loader = self._start(count)
        self._stream = iter(self._loader)

    def take(self, names: Iterable[str]) -> dict[str, Ready | str]:
        """The pictures of a batch, by name. They are kept until another batch needs others."""
        wanted = list(dict.fromkeys(names))
        if any(name not in self.held for name in wanted):
            self.held = {name: self.held[name] for name in wanted if name in self.held}
            for name in wanted:
                if name not in self.held:
                    self.held[name] = self._receive(name) if name in self._coming else self.opening[name]
        return {name: self.held[name] for name in wanted}

    def _receive(self, name: str) -> Ready | str:
        """The next picture from the workers; those before it are not wanted any more."""
        while True:
            try:
                found: Ready | str = next(self._stream)
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise RunError(
                    "a process that prepares pictures has ended by itself or was killed; nothing that is written is lost: "
                    "start the same command again, with workers 0, or fewer, if memory or /dev/shm is short"
                ) from error
            if self._coming.popleft() == name:
                return found.clone() if isinstance(found, Ready) and self.device.type != "cuda" else found

    def _start(self, count: int) -> DataLoader[Any]:
        try:
            pickle.dumps(self.opening)  # as multiprocessing will, for processes of ours; nothing from outside is ever unpickled
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SettingError(f"these pictures cannot be opened in other processes ({error}): use workers 0") from None
        _serve(self.opening.modules)
        context = get_context("forkserver")  # not fork: a process with a GPU or threads must not be copied
        first = context.Process(target=os.getpid)  # comes when all is imported; a Ctrl-C until then leaves no worker behind
        first.start()
        first.join()
        return DataLoader(
            self.opening,  # type: ignore[arg-type]  # by name instead of by number
            sampler=self._names,
            batch_size=None,
            num_workers=count,
            prefetch_factor=AHEAD,
            persistent_workers=True,
            pin_memory=self.device.type == "cuda",
            multiprocessing_context=context,
            worker_init_fn=_begin_worker,
            generator=torch.Generator(),  # so that the caller's is not drawn from
        )


def start_server(workers: int | str, device: torch.device, pictures: int) -> None:
    """Begin with what workers import, which takes seconds, if there will be any; returns at once."""
    if _count(workers, device, pictures):
        _serve(IMPORTED)


def _serve(modules: Iterable[str]) -> None:
    """Start the process that workers are forked from, unless it is there. Ctrl-C reaches the run alone, which ends them all."""
    get_context("forkserver").set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # before, because its start lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits this
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(_: int) -> None:
    sys.excepthook = _tell_unless_cut
    _end_with_parent()


def _tell_unless_cut(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In a worker, from the thread that hands tensors over: that a run was stopped in the middle of it is no error of ours."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def _end_with_parent() -> None:
    """In a worker: its parent is the fork server, which outlives a run that was killed as long as a worker does."""
    run = parent_process()

    def wait() -> None:
        if run is not None:
            run.join()
            os._exit(1)

    threading.Thread(target=wait, name="mgap-parent", daemon=True).start()


def _count(workers: int | str, device: torch.device, pictures: int) -> int:
    return _auto(device, pictures) if workers == "auto" else int(workers)


def _auto(device: torch.device, pictures: int) -> int:
    """On a GPU, a process a core but one, of the cores that this process of several may use; none where it would not pay."""
    if device.type != "cuda" or pictures <= FEW:
        return 0
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free < ROOM:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(MOST, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)) - 1))
