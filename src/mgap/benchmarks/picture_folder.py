"""A benchmark's folder of pictures, checked before any model is loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from mgap.errors import BenchmarkError, SettingError
from mgap.types import Sample

MISSING = ("refuse", "skip")


@dataclass(frozen=True)
class PictureFolder:
    """Maps a picture's name to the path of its file."""

    path: str | PathLike[str]

    def __call__(self, name: str) -> Path:
        """Refuses a name or a link that leads out of the folder, because question files and archives are not trusted."""
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BenchmarkError(f"the picture {name!r} is not below {self.path}: name pictures by their place in that folder")
        path = Path(self.path, name)
        try:
            real = Path(os.path.realpath(path))
        except ValueError:  # a name that no file can have
            return path
        if not any(real.is_relative_to(home) for home in self._homes()):
            raise BenchmarkError(
                f"{path}: a link on the way leads out of {self.path}, to {real}: name the folder that the pictures are in, or "
                "copy them (cp -rL)"
            )
        return path

    def _homes(self) -> list[Path]:
        """Where the pictures may lie: the folder itself, wherever it is, and the files of its snapshot in the hub's cache."""
        folder = Path(os.path.realpath(self.path))
        snapshots = (above for above in folder.parents if above.name == "snapshots")
        return [folder, *(above.parent / "blobs" for above in snapshots)]  # the hub's cache links one to the other

    def check(self, names: Iterable[str], missing: str = "refuse") -> set[str]:
        """The names whose file is missing or empty. Refuses any, unless missing="skip" and other files exist."""
        if missing not in MISSING:
            raise SettingError(f"missing={missing!r}: choose from {', '.join(MISSING)}")
        if not Path(self.path).is_dir():
            raise BenchmarkError(f"{self.path}: no such folder of pictures; name the folder that holds the files")
        distinct = dict.fromkeys(names)
        absent = [name for name in distinct if not self._has(name)]
        if absent and (missing == "refuse" or len(absent) == len(distinct)):
            counts = f"{len(absent)} of {len(distinct)} pictures are missing, first {absent[0]}"
            raise BenchmarkError(f"{self.path}: {counts}; {self._advice(distinct, len(absent))}")
        return set(absent)

    def _has(self, name: str) -> bool:
        file = self(name)
        return os.path.isfile(file) and os.path.getsize(file) > 0  # Path.is_file raises on a name that is too long

    def _advice(self, names: Collection[str], absent: int) -> str:
        subfolders = sorted(folder for folder in Path(self.path).iterdir() if folder.is_dir())
        if complete := [folder for folder in subfolders if all(PictureFolder(folder)._has(name) for name in names)]:
            return f"they are all in {complete[0]}: name that folder"
        if absent == len(names):
            return "name the folder that holds them"
        return 'add them, or leave out what asks about them with missing="skip"'


def keep_pictured(
    samples: Sequence[Sample], folder: PictureFolder, missing: str = "refuse"
) -> tuple[tuple[Sample, ...], list[str]]:
    """The samples whose picture exists, or that need none, and a note on those that missing="skip" left out."""
    absent = folder.check((sample.image for sample in samples if sample.image), missing)
    kept = tuple(sample for sample in samples if sample.image not in absent)
    first = next((sample.image for sample in samples if sample.image in absent), None)
    note = (
        f"{folder.path}: {len(absent)} pictures are missing, first {first}; "
        f"{len(samples) - len(kept)} of {len(samples)} samples are left out"
    )
    return kept, [note] if absent else []
