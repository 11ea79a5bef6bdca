"""The model's own description of a picture, generated once per picture before the branch exists."""

from __future__ import annotations

from mgap.backbones.base import Backbone
from mgap.methods.base import Tap
from mgap.methods.kinds.per_picture import EncodedPicture, PerPicture, render, write

CAPTION = "Please help me describe the image in detail."  # the caption benchmarks' prompt


class Descriptions(PerPicture[str]):
    """One text per row: the plain model's greedy answer to `prompt` about the row's picture, at most `length` tokens long."""

    def __init__(self, backbone: Backbone, prompt: str, length: int, *, keep: int = 256, tap: Tap | None = None) -> None:
        super().__init__(backbone, keep=keep)
        self.text, self.length, self.tap = render(backbone, prompt), length, tap or Tap()

    def find(self, pictures: list[EncodedPicture]) -> list[str]:
        self.tap.report(f"describing {len(pictures)} pictures" if len(pictures) > 1 else "describing the picture")
        return write(self.backbone, pictures, [self.text], self.length)
