"""Opens and prepares the pictures of a run ahead of their batch, in other processes, so that no GPU waits.

    with Pictures(PictureOpening(benchmark.picture, Preparer.of(backbone)), workers=8, device=backbone.device) as pictures:
        pictures.prefetch(names)              # in the order in which they will be taken
        ready = pictures.take(names[:10])   # by name: a picture, or the reason why there is none

torch's DataLoader runs the processes. They stay only a few pictures ahead, and end with this process. They are forked from a
server process that has imported what they need; `start_server` starts it in the background, before the model is loaded.
"""

from __future__ import annotations

import math
import os
import pickle
import resource
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

MAX_AUTO = 8  # processes that auto starts at most; more do not speed up one GPU
FEW = 200  # up to this many pictures auto starts no processes: starting takes seconds
AHEAD = 4  # pictures that each process prepares in advance
ROOM = 1 << 29  # bytes of free shared memory that auto requires
SHARED_MEMORY = Path("/dev/shm")
FILES, FILES_EACH = 16, 20  # that this process opens for workers, and for each: pipes, and one for every tensor under way
IMPORTED = (  # nearly all that workers of any family import; the processor is not known yet
    "mgap.run.picture_workers",
    "mgap.benchmarks.picture_folder",
    "mgap.backbones.loading",
    "transformers.processing_utils",
    "transformers.image_processing_backends",
    "transformers.tokenization_utils_tokenizers",
)


@dataclass(frozen=True)
class Ready:
    """A readable picture: prepared, or only opened if its family's processor needs the prompt too."""

    picture: Prepared | Image.Image | None  # None: the question has none
    digest: str  # SHA-256 of its pixels; "" without a picture

    def pin_memory(self) -> Ready:
        """Called by the DataLoader if there is a GPU."""
        return replace(self, picture=self.picture.pin_memory()) if isinstance(self.picture, Prepared) else self

    def clone(self) -> Ready:
        return replace(self, picture=self.picture.clone()) if isinstance(self.picture, Prepared) else self


class PictureOpening:
    """Maps a picture's name to the picture, or to a sentence that says why it cannot be read."""

    def __init__(self, picture: Callable[[str], ImageSource], preparer: Preparer | None) -> None:
        self.picture, self.preparer = picture, preparer

    @property
    def modules(self) -> list[str]:
        """Modules to import before the first picture can be opened. That takes seconds, so the server does it once."""
        parts: list[Any] = [self, self.picture]
        if self.preparer is not None:
            parts += [self.preparer, self.preparer.processor, *vars(self.preparer.processor).values()]
        return sorted({kind.__module__ for part in parts for kind in type(part).__mro__} - {"__main__"})

    def __getitem__(self, name: str) -> Ready | str:
        if not name:
            return Ready(None, "")
        try:
            opened = open_image(self.picture(name))
            if self.preparer is None:
                return Ready(opened, picture_digest(opened))
            prepared = self.preparer(opened)
        except ImageError as error:
            return f"{type(error).__name__}: {error}"
        return Ready(prepared, prepared.digest)


class Pictures:
    """Hands out pictures by name. A picture that consecutive batches share is prepared once."""

    def __init__(self, opening: PictureOpening, workers: int | str, device: torch.device) -> None:
        self.opening, self.workers, self.device = opening, workers, device
        self.held: dict[str, Ready | str] = {}  # the last batch's pictures
        self._names: list[str] = []  # the DataLoader's sampler
        self._coming: deque[str] = deque()  # names not taken yet
        self._loader: DataLoader[Any] | None = None
        self._stream: Iterator[Any] = iter(())

    def __enter__(self) -> Pictures:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream, self._loader = iter(()), None  # the processes end with the last reference to them
        self._coming.clear()
        self.held = {}

    def prefetch(self, names: Iterable[str]) -> None:
        """Announce the pictures to be taken, in order. Starts workers if that pays; running workers are used in any case."""
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
        """The pictures of a batch, by name. They are kept until a batch needs others."""
        wanted = list(dict.fromkeys(names))
        if any(name not in self.held for name in wanted):
            self.held = {name: self.held[name] for name in wanted if name in self.held}
            for name in wanted:
                if name not in self.held:
                    self.held[name] = self._receive(name) if name in self._coming else self.opening[name]
        return {name: self.held[name] for name in wanted}

    def _receive(self, name: str) -> Ready | str:
        """The named picture from the workers; earlier ones are dropped."""
        while True:
            try:
                picture: Ready | str = next(self._stream)
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise RunError(
                    "a process that prepares pictures has ended by itself or was killed; nothing that is written is lost: "
                    "start the same command again, with workers 0, or fewer, if memory or /dev/shm is short"
                ) from error
            if self._coming.popleft() == name:
                return picture.clone() if isinstance(picture, Ready) and self.device.type != "cuda" else picture

    def _start(self, count: int) -> DataLoader[Any]:
        _refuse_few_files(count)
        try:
            pickle.dumps(self.opening)  # as multiprocessing will, for our own processes; nothing from outside is unpickled
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SettingError(f"these pictures cannot be opened in other processes ({error}): use workers 0") from None
        _start_fork_server(self.opening.modules)
        context = get_context("forkserver")  # a process with a GPU or threads must not be forked
        first = context.Process(target=os.getpid)  # ends when all is imported; a Ctrl-C until then leaves no worker behind
        first.start()
        first.join()
        return DataLoader(
            self.opening,  # type: ignore[arg-type]  # indexed by name, not by number
            sampler=self._names,
            batch_size=None,
            num_workers=count,
            prefetch_factor=AHEAD,
            persistent_workers=True,
            pin_memory=self.device.type == "cuda",
            multiprocessing_context=context,
            worker_init_fn=_begin_worker,
            generator=torch.Generator(),  # leaves the caller's generator alone
        )


def start_server(workers: int | str, device: torch.device, pictures: int) -> None:
    """Start the server process with the workers' imports, if there will be workers. Returns at once."""
    if count := _count(workers, device, pictures):
        _refuse_few_files(count)
        _start_fork_server(IMPORTED)


def _start_fork_server(modules: Iterable[str]) -> None:
    """Start the process that workers are forked from, if it is not running. Only the run gets Ctrl-C, and ends the others."""
    get_context("forkserver").set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # first: starting it unblocks Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by the new process
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(_: int) -> None:
    sys.excepthook = _print_unless_disconnected
    _end_with_parent()


def _print_unless_disconnected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In a worker's thread that sends tensors: a run that was stopped meanwhile is not an error."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def _end_with_parent() -> None:
    """End this worker with the run. Its parent is the fork server, which outlives a killed run as long as a worker lives."""
    run = parent_process()

    def wait() -> None:
        if run is not None:
            run.join()
            os._exit(1)

    threading.Thread(target=wait, name="mgap-parent", daemon=True).start()


def _count(workers: int | str, device: torch.device, pictures: int) -> int:
    return _auto(device, pictures) if workers == "auto" else int(workers)


def _refuse_few_files(count: int) -> None:
    """Raise before anything is started: torch and multiprocessing leave half-started processes behind otherwise."""
    if (left := _files_left()) < (needed := FILES + FILES_EACH * count):
        raise RunError(
            f"{count} workers need {needed} open files, and this process may open {left} more: raise the limit (ulimit -n), "
            "or use fewer workers, or 0"
        )


def _files_left() -> float:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return math.inf
    try:
        return most - len(os.listdir("/dev/fd"))
    except OSError:  # not one more
        return 0


def _auto(device: torch.device, pictures: int) -> int:
    """On a GPU, one process per core but one, of this process's share of the cores; none where that does not pay."""
    if device.type != "cuda" or pictures <= FEW:
        return 0
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free < ROOM:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = max(0, min(MAX_AUTO, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)) - 1))
    return count if _files_left() >= FILES + FILES_EACH * count else 0
