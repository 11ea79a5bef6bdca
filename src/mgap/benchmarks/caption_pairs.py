"""A user's own pairs of captions: JSON lines or CSV with image, true and false, and optionally the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mgap.benchmarks.picture_folder import PictureFolder
from mgap.errors import BenchmarkError
from mgap.io.record_files import FilePath, field, read_rows

if TYPE_CHECKING:
    from mgap.priors.null_space import CaptionPair

COLUMNS = ("image", "true", "false")
_NEEDED = f"a record has {', '.join(COLUMNS)}, and may have prompt"


def read_caption_pairs(path: FilePath, images: FilePath | None = None) -> tuple[list[CaptionPair], list[str]]:
    """The pairs, and notes. Pictures are in `images`, or next to the file; without a prompt, it is that of Nullu's authors."""
    from mgap.priors.null_space import PROMPT, CaptionPair

    folder = PictureFolder(Path(path).parent if images is None else images)
    rows, pairs = read_rows(path), []
    for row in rows:
        image, true, false = (field(path, row, name, _NEEDED) for name in COLUMNS)
        prompt = field(path, row, "prompt", _NEEDED) if "prompt" in row.data else PROMPT
        pairs.append((image, prompt, true, false))
    if not pairs:
        raise BenchmarkError(f"{path}: no pair of captions in it; {_NEEDED}")
    folder.check(image for image, *_ in pairs)
    unused = sorted({name for row in rows for name in row.data} - {*COLUMNS, "prompt"})
    notes = [f"{path}: not used: {', '.join(unused)}"] if unused else []
    return [CaptionPair(folder(image), *texts) for image, *texts in pairs], notes
