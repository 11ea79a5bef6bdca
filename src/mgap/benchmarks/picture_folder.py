"""A benchmark's folder of pictures, looked through before any model is loaded."""

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
    """From a picture's name to the path of its file."""

    path: str | PathLike[str]

    def __call__(self, name: str) -> Path:
        """Refuses a name that leads out of the folder: question files come from elsewhere."""
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BenchmarkError(f"the picture {name!r} is not below {self.path}: name pictures by their place in that folder")
        return Path(self.path, name)

    def check(self, names: Iterable[str], missing: str = "refuse") -> set[str]:
        """The names without a file that holds anything; any at all is refused, unless missing="skip" and some are there."""
        if missing not in MISSING:
            raise SettingError(f"missing={missing!r}: choose from {', '.join(MISSING)}")
        if not Path(self.path).is_dir():
            raise BenchmarkError(f"{self.path}: no such folder of pictures; name the folder that holds the files")
        asked = dict.fromkeys(names)
        absent = [name for name in asked if not self._holds(name)]
        if absent and (missing == "refuse" or len(absent) == len(asked)):
            counts = f"{len(absent)} of {len(asked)} pictures are missing, first {absent[0]}"
            raise BenchmarkError(f"{self.path}: {counts}; {self._advice(asked, len(absent))}")
        return set(absent)

    def _holds(self, name: str) -> bool:
        file = self(name)
        return os.path.isfile(file) and os.path.getsize(file) > 0  # unlike Path's, false for a name that is too long

    def _advice(self, asked: Collection[str], absent: int) -> str:
        inner = sorted(folder for folder in Path(self.path).iterdir() if folder.is_dir())
        if found := [folder for folder in inner if all(PictureFolder(folder)._holds(name) for name in asked)]:
            return f"they are all in {found[0]}: name that folder"
        if absent == len(asked):
            return "name the folder that holds them"
        return 'add them, or leave out what asks about them with missing="skip"'


def keep_pictured(
    samples: Sequence[Sample], folder: PictureFolder, missing: str = "refuse"
) -> tuple[tuple[Sample, ...], list[str]]:
    """The samples whose picture is there, and a note on those that missing="skip" left out."""
    absent = folder.check((sample.image for sample in samples), missing)
    kept = tuple(sample for sample in samples if sample.image not in absent)
    first = next((sample.image for sample in samples if sample.image in absent), None)
    note = (
        f"{folder.path}: {len(absent)} pictures are missing, first {first}; "
        f"{len(samples) - len(kept)} of {len(samples)} samples are left out"
    )
    return kept, [note] if absent else []
