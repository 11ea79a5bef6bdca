"""Read and write regular files only: nothing waits for a pipe or a device, and nothing is written through a link.

open(path, "rb", opener=regular)   reading: links are followed, since caches of downloads consist of them
open(path, "ab", opener=own)       writing into a folder of ours: a link in it is refused
inside(folder, "answers", name)    the same for the folders on the way
"""

from __future__ import annotations

import os
import stat
from os import PathLike
from pathlib import Path

from mgap.errors import CorruptFile

_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # opening a pipe does not wait for its other end; Windows has no such flag
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


class NotRegular(CorruptFile, OSError):
    """Something else lies where a regular file is expected."""


def regular(path: str | PathLike[str], flags: int) -> int:
    """An `opener` for open(): refuses at once whatever is no regular file."""
    require_regular(path)  # first, because some devices act on being opened
    return _open(path, flags)


def own(path: str | PathLike[str], flags: int) -> int:
    """An `opener` for open(), for writing: like `regular`, and refuses a link; makes the file if there is none."""
    refuse_link(path)
    if os.path.lexists(path):
        require_regular(path)
    return _open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _open(path: str | PathLike[str], flags: int) -> int:
    handle = os.open(path, flags | _AT_ONCE, 0o666)
    try:
        _check(path, os.fstat(handle))  # again, in case it was exchanged
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_regular(path: str | PathLike[str]) -> bytes:
    with open(path, "rb", opener=regular) as file:
        return file.read()


def require_regular(path: str | PathLike[str]) -> None:
    """Refuse what is no regular file, before a library opens it by its name."""
    _check(path, os.stat(path))


def require_regular_files(folder: Path) -> None:
    """Refuse a folder of files, such as a checkpoint, before a library opens them by their names."""
    for path in folder.iterdir():
        if path.exists() and not path.is_dir():
            require_regular(path)


def _check(path: str | PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise NotRegular(f"{path}: {kind} where a regular file is expected; name a file, or put what comes from there into one")


def refuse_link(path: str | PathLike[str]) -> None:
    if os.path.islink(path):
        raise CorruptFile(f"{path}: a link, and nothing is written through links; remove it, or name another folder")


def inside(folder: Path, *names: str) -> Path:
    """The path of something to be written below a folder, which may be a link itself; refuses a link on the way."""
    for name in names:
        folder = folder / name
        refuse_link(folder)
    return folder
