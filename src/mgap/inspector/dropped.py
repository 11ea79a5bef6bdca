"""A picture that the user drops, chooses or pastes: Gradio's image component, but with our own checks of the file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import client_utils
from gradio.utils import get_upload_folder, is_in_or_equal
from PIL import Image

from mgap.errors import ImageError, SettingError
from mgap.inspector.component import NoStubMeta
from mgap.io.images import MAX_PIXELS, open_image, picture_size

MEGABYTE = 2**20  # as Gradio counts, so that its refusal names the same number
NOT_DROPPED = "Only a picture that was dropped, chosen or pasted here is read: drop yours again."


@dataclass(frozen=True)
class Limits:
    """How large a dropped picture may be."""

    megabytes: float = 20
    pixels: int = 50_000_000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.megabytes) and self.megabytes > 0):
            raise SettingError(f"megabytes={self.megabytes} must be a number above 0")
        if not 0 < self.pixels <= MAX_PIXELS:
            raise SettingError(f"pixels={self.pixels} must be from 1 to {MAX_PIXELS:,}")

    @property
    def bytes(self) -> int:
        """For Gradio's max_file_size, which stops an upload on its way."""
        return int(self.megabytes * MEGABYTE)


class DroppedPicture(gr.Image, metaclass=NoStubMeta):
    """Drag and drop, file dialog, paste. A handler gets the path of the uploaded file, not decoded, or None."""

    is_template = True  # the browser shows it as gr.Image

    def __init__(self, value: Any = None, *, label: str = "Picture", **further: Any) -> None:
        shown = {"sources": ["upload", "clipboard"], "type": "filepath", "format": "png", "buttons": ["fullscreen"]}
        super().__init__(value, label=label, **{**shown, **further})

    def preprocess(self, payload: Any) -> str | None:
        if payload is None:
            return None
        if payload.path is None or not is_in_or_equal(payload.path, get_upload_folder()):
            raise gr.Error(NOT_DROPPED, print_exception=False)
        return str(payload.path)

    async def async_move_resource_to_block_cache(self, url_or_file_path: str | Path | None) -> str | None:
        """Refuse a web address in place of a file, which Gradio would fetch."""
        if url_or_file_path is not None and client_utils.is_http_url_like(str(url_or_file_path)):
            raise gr.Error(NOT_DROPPED, print_exception=False)
        moved: str | None = await super().async_move_resource_to_block_cache(url_or_file_path)
        return moved

    def get_config(self, cls: Any = None) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config(cls or gr.Image)  # it has the parameters of gr.Image
        return config


def open_dropped(path: str | Path, limits: Limits | None = None) -> Image.Image:
    """Open an uploaded picture, upright and RGB; of an animation the first frame. Errors give the file's own name."""
    path, limits = Path(path), limits or Limits()
    name = path.name  # Gradio keeps it, in a folder per upload
    if not path.is_file():
        raise ImageError(f"{name}: the file is no longer there; drop it again")
    if (size := path.stat().st_size) > limits.bytes:
        raise ImageError(
            f"{name}: {size / MEGABYTE:.1f} MB, and at most {limits.megabytes:g} MB are taken; scale it down or save it as JPEG"
        )
    shape = picture_size(path)  # from the header, without decoding pixels
    if shape is not None and shape[0] * shape[1] > limits.pixels:
        raise ImageError(
            f"{name}: {shape[0]} x {shape[1]} pixels, and at most {limits.pixels:,} are taken; scale it down first"
        )
    return open_image(path, name=name)
