"""Download one published file: complete and with the right checksum, or not at all."""

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
from mgap.io.regular_files import regular

_CHUNK_BYTES = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
_ARCHIVE_ERRORS = (  # what a damaged archive raises
    KeyError, EOFError, NotImplementedError, OSError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


class NotFetched(BenchmarkError):
    """A download failed; the message says why."""


def download(url: str, path: Path, sha256: str, size: int, report: Callable[[int], None] | None = None) -> None:
    """Download to a temporary file, check it, and rename it to `path`; calls `report` with the bytes received so far."""
    with replacing(path) as file:
        sha, received = hashlib.sha256(), 0
        try:
            with urlopen(Request(url, headers={"User-Agent": "mgap"}), timeout=_TIMEOUT) as reply:
                for chunk in _chunks(reply):
                    file.write(chunk)
                    sha.update(chunk)
                    received += len(chunk)
                    if report is not None:
                        report(received)
        except http.client.IncompleteRead as error:
            received += len(error.partial)  # earlier chunks are counted already
        except HTTPError as error:
            error.close()
            raise NotFetched(f"HTTP {error.code}: {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
            raise NotFetched(str(getattr(error, "reason", error))) from None
        if received != size:
            raise NotFetched(f"{received:,} bytes came, and the published file has {size:,}")
        if sha.hexdigest() != sha256:
            raise NotFetched(f"what came has SHA-256 {sha.hexdigest()}, and the published file {sha256}")


def unpack(archive: Path, name: str, path: Path) -> None:
    """Extract one file of a zip archive, unless `path` already has the same content."""
    try:
        with zipfile.ZipFile(archive) as packed:
            if path.is_file() and _is_extracted(path, packed.getinfo(name)):
                return
            with packed.open(name) as content, replacing(path) as file:
                for chunk in _chunks(content):
                    file.write(chunk)
    except _ARCHIVE_ERRORS as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a bad archive seeks before its start
            raise
        raise BenchmarkError(f"{archive}: {name} cannot be unpacked ({error}); remove the archive and fetch it again") from None


def _is_extracted(path: Path, info: zipfile.ZipInfo) -> bool:
    checksum = 0
    with open(path, "rb", opener=regular) as file:
        for chunk in _chunks(file):
            checksum = zlib.crc32(chunk, checksum)
    return path.stat().st_size == info.file_size and checksum == info.CRC


def _chunks(file: IO[bytes] | http.client.HTTPResponse) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
