"""Files that appear complete or not at all, their checksums, and the cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_UNFINISHED = ".part"


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
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file and rename it to `path` when the block succeeds; until then the old file stays."""
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
