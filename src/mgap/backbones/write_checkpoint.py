"""Write a model with its processor as an ordinary checkpoint: a new folder that is whole, or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mgap.backbones.base import Backbone
from mgap.errors import ModelError, SettingError, one_line
from mgap.io.output_folder import write_files


def refuse_existing(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that is there already, or cannot be made. Makes nothing."""
    target = Path(folder)
    if os.path.lexists(target):  # Path.exists raises on a name that is too long
        raise SettingError(f"{folder} is there already, and nothing is overwritten: remove it, or name a new folder")
    above = next(path for path in target.absolute().parents if os.path.lexists(path))
    if not above.is_dir():
        raise SettingError(f"{folder}: {above} is no folder, so nothing can be written below it; name another one")


def write_checkpoint(backbone: Backbone, folder: str | os.PathLike[str], texts: Mapping[str, str]) -> None:
    """Write weights, configuration, processor and these further files; `AutoModelForImageTextToText` loads the folder.

    The processor is written as this package loads it, without a part for videos.
    """
    refuse_existing(folder)
    processor: Any = backbone._require_processor()
    target = Path(folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            backbone.model.save_pretrained(unfinished)
            processor.save_pretrained(unfinished)
            write_files(unfinished, texts)
            unfinished.chmod(0o755)  # mkdtemp makes it private
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, ValueError) as error:  # of transformers, such as a generation_config that it would not load again
        raise ModelError(f"{folder}: the checkpoint cannot be written there ({one_line(error)})") from error
