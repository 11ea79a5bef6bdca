"""The folder of uploaded files: the oldest are removed where all of them together would grow too large."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

FILES_KEPT = 25  # as many files of the largest size may lie there
LEAST_BYTES = 65_536  # that a file counts for, so that there are not too many of them


class UploadFolder:
    """Holds at most `most` bytes, pieces of files included that are still on their way."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most, self._room = path.resolve(), most, 0

    def make_room(self) -> None:
        """Remove the oldest files until a tenth is free. Whoever still needs one is asked to drop it again."""
        found = []
        for path in self.path.rglob("*"):
            with suppress(OSError):  # removed meanwhile
                if not path.is_dir():
                    at = path.lstat()
                    found.append((at.st_mtime_ns, max(at.st_size, LEAST_BYTES), path))
        held = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if held <= self.most * 9 // 10:
                break
            with suppress(OSError):
                path.unlink()
                held -= size
                if path.parent != self.path:
                    path.parent.rmdir()
        self._room = self.most - held

    def grow(self, size: int) -> None:
        """So many bytes more are about to be written."""
        self._room -= size
        if self._room < 0:
            self.make_room()
