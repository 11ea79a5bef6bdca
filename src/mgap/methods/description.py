"""The model's own words about a picture, for methods that answer from them: asked for once, before the branch exists."""

from __future__ import annotations

from mgap.backbones.base import Backbone
from mgap.methods.pictures import PerPicture, Picture, render, write


class Descriptions(PerPicture[str]):
    """One text a row: what the plain model says, greedily, to `prompt` about the row's picture, in at most `length` tokens."""

    def __init__(self, backbone: Backbone, prompt: str, length: int, *, keep: int = 256) -> None:
        super().__init__(backbone, keep=keep)
        self.text, self.length = render(backbone, prompt), length

    def find(self, pictures: list[Picture]) -> list[str]:
        return write(self.backbone, pictures, [self.text], self.length)
