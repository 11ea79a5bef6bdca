"""Files that appear complete or not at all, folders that one process writes at a time, checksums, and the cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mgap.errors import MgapError
from mgap.io.regular_files import refuse_link, regular

_UNFINISHED = ".part"
_PATIENCE = 60.0  # seconds to wait for another process that writes
_PAUSE = 0.005  # seconds between two looks


def is_unfinished(name: str) -> bool:
    """Whether this is the name of a temporary file that a killed process left behind."""
    return name.startswith(".") and name.endswith(_UNFINISHED)


def cache_folder() -> Path:
    """$MGAP_CACHE; by default the folder mgap in $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get("MGAP_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mgap"


def file_sha256(path: str | os.PathLike[str]) -> str:
    """A file's SHA-256, read in chunks."""
    sha = hashlib.sha256()
    with open(path, "rb", opener=regular) as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file and rename it to `path` when the block succeeds; until then the old file stays.

    A link at `path` is refused: whoever made it expects the file that it names to change.
    """
    refuse_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(unfinished, 0o644)  # mkstemp makes it private
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


@contextmanager
def written_alone(folder: Path, *, patience: float = _PATIENCE) -> Iterator[bool]:
    """Make the folder, and let no other process write to it in this way during the block.

    Waits for another writer, and is refused after `patience` seconds. Yields whether there is a lock: some network file systems
    have none, and then nothing may be removed that another process may have written. The lock is the kernel's, on the folder
    itself: it leaves no file behind and ends with the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(handle, folder, patience)
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, patience: float) -> bool:
    import fcntl  # not on Windows, where nothing but reading works

    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                raise MgapError(f"{folder}: another process is writing there; wait for it, or name another folder") from None
            time.sleep(_PAUSE)
        except OSError:
            return False
