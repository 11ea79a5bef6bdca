"""One published file onto the disk: whole and with the right checksum, or not at all."""

from __future__ import annotations

import errno
import hashlib
import http.client
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from mgap.errors import BenchmarkError
from mgap.io.atomic_files import replacing

_PIECE = 1 << 20  # bytes
_TIMEOUT = 30.0  # seconds without a byte
_DAMAGED = (  # what a damaged archive raises
    KeyError, EOFError, NotImplementedError, OSError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


class NotFetched(BenchmarkError):
    """A file that an address did not give; the message says why."""


def digest(path: Path) -> str:
    """A file's SHA-256."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for piece in _pieces(file):
            found.update(piece)
    return found.hexdigest()


def download(url: str, path: Path, sha256: str, size: int, report: Callable[[int], None] | None = None) -> None:
    """Fetch into a file beside `path` and rename it once it is what was published; `report` hears how many bytes came."""
    with replacing(path) as file:
        found, done = hashlib.sha256(), 0
        try:
            with urlopen(Request(url, headers={"User-Agent": "mgap"}), timeout=_TIMEOUT) as reply:
                for piece in _pieces(reply):
                    file.write(piece)
                    found.update(piece)
                    done += len(piece)
                    if report is not None:
                        report(done)
        except http.client.IncompleteRead as error:  # what came before was counted
            done += len(error.partial)
        except HTTPError as error:
            error.close()
            raise NotFetched(f"HTTP {error.code}: {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
            raise NotFetched(str(getattr(error, "reason", error))) from None
        if done != size:
            raise NotFetched(f"{done:,} bytes came, and the published file has {size:,}")
        if found.hexdigest() != sha256:
            raise NotFetched(f"what came has SHA-256 {found.hexdigest()}, and the published file {sha256}")


def unpack(archive: Path, name: str, path: Path) -> None:
    """Write one file of a zip, unless it is there as the zip has it."""
    try:
        with zipfile.ZipFile(archive) as packed:
            if path.is_file() and _is_packed(path, packed.getinfo(name)):
                return
            with packed.open(name) as content, replacing(path) as file:
                for piece in _pieces(content):
                    file.write(piece)
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of the disk; the other, of a place before the file
            raise
        raise BenchmarkError(f"{archive}: {name} cannot be unpacked ({error}); remove the archive and fetch it again") from None


def _is_packed(path: Path, info: zipfile.ZipInfo) -> bool:
    checksum = 0
    with path.open("rb") as file:
        for piece in _pieces(file):
            checksum = zlib.crc32(piece, checksum)
    return path.stat().st_size == info.file_size and checksum == info.CRC


def _pieces(file: IO[bytes] | http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece
