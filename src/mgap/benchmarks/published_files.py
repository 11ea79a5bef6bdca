"""The benchmarks' published files: what there is, where it comes from, and a folder that holds it.

published.yaml lists every file with its address, size and SHA-256. They are kept in the cache (`cache_folder`).
Pictures are not fetched: they are large, and under other licences; the list says where they come from.
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

Report = Callable[[str, int, int], None]  # a file's path, how many of its bytes are there, and of how many


@dataclass(frozen=True)
class File:
    """One published file."""

    path: str  # in the benchmark's folder
    url: str
    size: int  # bytes
    sha256: str
    project: str
    licence: str
    unpack: tuple[str, ...] = ()  # of an archive: what is taken out of it, to the same paths in the folder


@dataclass(frozen=True)
class PublishedBenchmark:
    """What one benchmark is made of."""

    name: str
    files: tuple[File, ...]
    pictures: tuple[str, ...]  # where they come from, in words

    def by_hand(self, folder: Path) -> str:
        """What to do without a network, a line a file that is not there."""
        absent = [file for file in self.files if not (folder / file.path).exists()]
        return "\n".join([f"put these into {folder} by hand:", *(f"  {file.path}  from  {file.url}" for file in absent)])


def published(name: str, table: Mapping[str, Any] | None = None) -> PublishedBenchmark:
    """A benchmark's files: pope, chair or amber."""
    table = _table() if table is None else table
    if name not in table:
        raise SettingError(f"unknown benchmark {name!r}: choose from {', '.join(table)}")
    found = tuple(
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
    return PublishedBenchmark(name, found, tuple(table[name]["pictures"]))


def names() -> list[str]:
    """The benchmarks that have published files."""
    return list(_table())


def cache(name: str) -> Path:
    """Where a benchmark's files are kept."""
    return cache_folder() / name


def find_data(name: str, folder: str | PathLike[str] | None = None, report: Report | None = None) -> Path:
    """The folder that was given, as it is; else the cache, after fetching what it lacks."""
    if folder is None:
        return fetch(published(name), report=report)
    if not Path(folder).is_dir():
        raise BenchmarkError(f"{folder}: no such folder of {name}'s files; leave it out to fetch them, or `mgap fetch {name}`")
    return Path(folder)


def fetch(wanted: PublishedBenchmark, folder: str | PathLike[str] | None = None, report: Report | None = None) -> Path:
    """Make a folder hold all files, by default the cache: what is there is checked, and what is not is fetched and checked."""
    target = cache(wanted.name) if folder is None else Path(folder)
    _check(wanted, target)
    for file in wanted.files:
        path = target / file.path
        try:
            if not path.exists():
                download(file.url, path, file.sha256, file.size, _hears(report, file))
            for name in file.unpack:
                unpack(path, name, target / name)
        except NotFetched as error:
            raise BenchmarkError(f"{file.url} could not be fetched ({error}); {wanted.by_hand(target)}") from None
        except OSError as error:
            raise BenchmarkError(f"{path}: cannot be written ({error.strerror or error}); name another folder") from None
    return target


def _check(wanted: PublishedBenchmark, folder: Path) -> None:
    """Refuse files that are there but are not the published ones, before anything is fetched."""
    if folder.exists() and not folder.is_dir():
        raise BenchmarkError(f"{folder}: is a file, and the files of {wanted.name} need a folder; name another one")
    for path, file in _there(wanted, folder):
        sha256 = file_sha256(path)
        if sha256 != file.sha256:
            raise BenchmarkError(
                f"{path}: not the published file (SHA-256 {sha256}, published {file.sha256}); remove it, or use another folder"
            )


def _there(wanted: PublishedBenchmark, folder: Path) -> Iterator[tuple[Path, File]]:
    for file in wanted.files:
        path = folder / file.path
        if path.is_dir():
            raise BenchmarkError(f"{path}: a folder where a file must go; remove it, or use another folder")
        if path.exists():
            yield path, file


def _hears(report: Report | None, file: File) -> Callable[[int], None] | None:
    return None if report is None else lambda done: report(file.path, done, file.size)


def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(files("mgap.benchmarks").joinpath("published.yaml").read_text(encoding="utf-8"))
    return table
