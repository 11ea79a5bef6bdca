"""Files that are there whole or not at all, and the folder of those that can be made or fetched again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_UNFINISHED = ".part"


def is_unfinished(name: str) -> bool:
    """Whether a file of this name is what a process that was killed left of one; nobody reads it."""
    return name.startswith(".") and name.endswith(_UNFINISHED)


def cache_folder() -> Path:
    """$MGAP_CACHE, else mgap below $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("MGAP_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mgap"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes the name `path` only when the block ends well; the old one stays until then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(unfinished, 0o644)  # mkstemp's own mode is private
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
