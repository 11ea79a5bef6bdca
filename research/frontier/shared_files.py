"""JSON files that several processes add to, each its own part."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from mgap.errors import SettingError
from mgap.io.atomic_files import replacing, written_alone

Content = TypeVar("Content")


def add_to_file(path: Path, empty: Content, load: Callable[[Path], Content], add: Callable[[Content], Content]) -> Content:
    """Add to the dataclass that a file holds by now, or to `empty`, while no other process does; return all of it.

    `load` takes the file's folder.
    """
    try:
        with written_alone(path.parent):
            content: Any = add(load(path.parent) if path.exists() else empty)
            with replacing(path) as file:
                file.write((json.dumps(asdict(content), indent=1) + "\n").encode())
    except OSError as error:
        raise SettingError(f"{path.parent}: cannot be written ({error.strerror}); name another folder") from None
    made: Content = content
    return made
