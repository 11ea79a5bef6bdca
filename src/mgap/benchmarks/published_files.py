"""The benchmarks' published files: download them to a folder and verify them.

published.yaml lists every file with its URL, size and SHA-256. The default folder is the cache (`cache_folder`). Pictures are
not downloaded, because they are large and have other licences; the list says where to get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from mgap.errors import BenchmarkError, SettingError
from mgap.io.atomic_files import cache_folder, file_sha256
from mgap.io.download import NotFetched, download, unpack

Report = Callable[[str, int, int], None]  # a file's path, bytes received, total bytes


@dataclass(frozen=True)
class File:
    """One published file."""

    path: str  # in the benchmark's folder
    url: str
    size: int  # bytes
    sha256: str
    project: str
    licence: str
    unpack: tuple[str, ...] = ()  # files to extract from an archive, to the same paths in the folder


@dataclass(frozen=True)
class PublishedBenchmark:
    """The published files of one benchmark."""

    name: str
    files: tuple[File, ...]
    pictures: tuple[str, ...]  # where to get them, in words

    def by_hand(self, folder: Path) -> str:
        """Instructions for a manual download, one line per missing file."""
        absent = [file for file in self.files if not (folder / file.path).exists()]
        return "\n".join([f"put these into {folder} by hand:", *(f"  {file.path}  from  {file.url}" for file in absent)])


def published(name: str, table: Mapping[str, Any] | None = None) -> PublishedBenchmark:
    """A benchmark's files, by its name in published.yaml."""
    table = _table() if table is None else table
    if name not in table:
        raise SettingError(f"unknown benchmark {name!r}: choose from {', '.join(table)}")
    entries = tuple(
        File(
            path=file["path"],
            url=f"{source['address']}/{file['at']}",
            size=file["size"],
            sha256=file["sha256"],
            project=source["project"],
            licence=source["licence"],
            unpack=tuple(file.get("unpack", ())),
        )
        for source in table[name]["sources"]
        for file in source["files"]
    )
    return PublishedBenchmark(name, entries, tuple(table[name]["pictures"]))


def names() -> list[str]:
    """The benchmarks that have published files."""
    return list(_table())


def cache(name: str) -> Path:
    """The cache folder of a benchmark's files."""
    return cache_folder() / name


def find_data(name: str, folder: str | PathLike[str] | None = None, report: Report | None = None) -> Path:
    """The given folder, unchecked; without one, the cache, after downloading what is missing there."""
    if folder is None:
        return fetch(published(name), report=report)
    if not Path(folder).is_dir():
        raise BenchmarkError(f"{folder}: no such folder of {name}'s files; leave it out to fetch them, or `mgap fetch {name}`")
    return Path(folder)


def fetch(wanted: PublishedBenchmark, folder: str | PathLike[str] | None = None, report: Report | None = None) -> Path:
    """Download missing files to a folder, by default the cache; verifies existing and downloaded files."""
    target = cache(wanted.name) if folder is None else Path(folder)
    _check(wanted, target)
    for file in wanted.files:
        path = target / file.path
        try:
            if not path.exists():
                download(file.url, path, file.sha256, file.size, _file_report(report, file))
            for name in file.unpack:
                unpack(path, name, target / name)
        except NotFetched as error:
            raise BenchmarkError(f"{file.url} could not be fetched ({error}); {wanted.by_hand(target)}") from None
        except OSError as error:
            raise BenchmarkError(f"{path}: cannot be written ({error.strerror or error}); name another folder") from None
    return target


def _check(wanted: PublishedBenchmark, folder: Path) -> None:
    """Refuse existing files that are not the published ones, before anything is downloaded."""
    if folder.exists() and not folder.is_dir():
        raise BenchmarkError(f"{folder}: is a file, and the files of {wanted.name} need a folder; name another one")
    for path, file in _existing(wanted, folder):
        sha256 = file_sha256(path)
        if sha256 != file.sha256:
            raise BenchmarkError(
                f"{path}: not the published file (SHA-256 {sha256}, published {file.sha256}); remove it, or use another folder"
            )


def _existing(wanted: PublishedBenchmark, folder: Path) -> Iterator[tuple[Path, File]]:
    for file in wanted.files:
        path = folder / file.path
        if path.is_dir():
            raise BenchmarkError(f"{path}: a folder where a file must go; remove it, or use another folder")
        if path.exists():
            yield path, file


def _file_report(report: Report | None, file: File) -> Callable[[int], None] | None:
    return None if report is None else lambda done: report(file.path, done, file.size)


def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(files("mgap.benchmarks").joinpath("published.yaml").read_text(encoding="utf-8"))
    return table
