"""The folder that a report is written to: checked before the work starts, then written file by file, each one atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from mgap.errors import SettingError
from mgap.io.atomic_files import replacing, written_alone


def check_folder(folder: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Refuse a folder that these files cannot be written to. Creates nothing, not even the folder."""
    target = Path(folder)
    existing = next(path for path in (target, *target.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise SettingError(f"{folder}: {existing} is a file, so nothing can be written below it; name another folder")
    for name in names:
        if (target / name).is_dir():
            raise SettingError(f"{target / name} is a folder where a file must go: remove it, or name another folder")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise SettingError(f"{folder}: nothing can be written there ({error.strerror}); name another folder") from None


def write_files(folder: str | os.PathLike[str], texts: Mapping[str, str]) -> list[Path]:
    """Write or replace these files, leave all others alone, and return the paths. Two processes do so one after the other."""
    target = Path(folder)
    try:
        with written_alone(target):
            for name, text in texts.items():
                with replacing(target / name) as file:
                    file.write(text.encode())
    except OSError as error:
        raise SettingError(f"{folder}: cannot be written ({error.strerror}); name another folder") from None
    return [target / name for name in texts]
