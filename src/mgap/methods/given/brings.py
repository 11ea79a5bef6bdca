"""What brings evidence from other models: drawn captions, crops around boxes, lists of objects, pictures of other samples.

Each is a `Brings`: give it as the setting `evidence`. The detector or the text-to-image model is yours (`Detects`, `Draws`);
docs/methods/given.md has adapters for transformers' and diffusers' pipelines.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mgap.backbones.asked_rows import Asked
from mgap.backbones.base import Backbone
from mgap.backbones.checked_generate import generate_checked
from mgap.backbones.greedy_config import greedy_config
from mgap.backbones.prepared_pictures import picture_digest, picture_key
from mgap.errors import SettingError
from mgap.io.images import MIN_SIDE, ImageSource, open_image
from mgap.methods.given.evidence import TEMPLATE, Box, Detects, Draws, Evidence, check_template, write_objects
from mgap.methods.kinds.description import CAPTION
from mgap.methods.kinds.main_rows import row_split_of
from mgap.priors.object_words import Vocabulary, Words
from mgap.settings import check_count, check_share

Sides = tuple[float, float, float, float]  # left, top, right, bottom, in shares of the picture
MIDDLE: Sides = (0.2, 0.2, 0.8, 0.8)  # where no box is found
MOST_SHRUNK = 0.8


@dataclass(frozen=True, eq=False)
class Pictured:
    """ConVis: pictures drawn from the plain model's own caption. What the caption made up is in them, and can be contrasted.

    Every caption is drawn by a call of its own, so that a sample does not depend on its batch.
    """

    model: Any  # that describes: usually the one that answers
    draws: Draws
    prompt: str = CAPTION
    length: int = 256  # of a caption, at most, in tokens
    count: int = 4
    seed: int = 0

    def __call__(self, asked: Sequence[Asked]) -> list[Evidence]:
        distinct = {_key(row.picture): row.picture for row in asked}
        captions = plain_answers(self.model, list(distinct.values()), [self.prompt] * len(distinct), self.length)
        drawn = {key: self._draw(caption) for key, caption in zip(distinct, captions, strict=True)}
        return [drawn[_key(row.picture)] for row in asked]

    def _draw(self, caption: str) -> Evidence:
        (pictures,) = self.draws([caption], self.count, self.seed)
        return Evidence(tuple(pictures))


@dataclass(frozen=True, eq=False)
class Fields:
    """HALC: nested crops around one box, the smallest field of view first.

    The box is the smallest of the `most_boxes` best ones of the things that the prompt names; if it names none, of those that
    the plain model's answer names. `vocabulary` is as in HalTrapper: "coco", a file, or words.
    """

    model: Any  # that answers plainly where the prompt names nothing
    detects: Detects
    fields: int = 4
    ratio: float = 0.6
    most_boxes: int = 3
    vocabulary: Words = "coco"
    length: int = 64  # of a plain answer, at most, in tokens

    def __post_init__(self) -> None:
        check_count("fields", self.fields, least=2)
        check_share("ratio", self.ratio)
        check_count("most_boxes", self.most_boxes, least=1)
        self._things  # noqa: B018  refuses words that are none

    @cached_property
    def _things(self) -> Vocabulary:
        return Vocabulary.of(self.vocabulary)

    def __call__(self, asked: Sequence[Asked]) -> list[Evidence]:
        words = [list(self._things.first_mentions(row.prompt)) for row in asked]
        silent = [number for number, named in enumerate(words) if not named]
        if silent:
            rows = [asked[number] for number in silent]
            told = plain_answers(self.model, [row.picture for row in rows], [row.prompt for row in rows], self.length)
            for number, answer in zip(silent, told, strict=True):
                words[number] = list(self._things.first_mentions(answer))
        found = self.detects([row.picture for row in asked], words)
        return [self._crops(row.picture, boxes) for row, boxes in zip(asked, found, strict=True)]

    def _crops(self, picture: Image.Image, boxes: Sequence[Box]) -> Evidence:
        best = sorted(boxes, key=lambda box: -box.score)[: self.most_boxes]
        smallest = min(best, key=lambda box: box.area, default=None)
        around = MIDDLE if smallest is None else (smallest.left, smallest.top, smallest.right, smallest.bottom)
        return Evidence(tuple(crop(picture, sides) for sides in nested_boxes(around, self.fields, self.ratio)))


@dataclass(frozen=True, eq=False)
class Listed:
    """MARINE: the prompt with a list of the things that a detector finds, the surest first."""

    detects: Detects
    words: Sequence[str]  # to look for
    threshold: float = 0.95  # of a box's score
    template: str = TEMPLATE

    def __post_init__(self) -> None:
        if isinstance(self.words, str) or not self.words:
            raise SettingError(f"words={self.words!r:.60} must be a list of things to look for")
        check_share("threshold", self.threshold)
        check_template(self.template)

    def __call__(self, asked: Sequence[Asked]) -> list[Evidence]:
        found = self.detects([row.picture for row in asked], [list(self.words)] * len(asked))
        return [Evidence(text=self._write(row.prompt, boxes)) for row, boxes in zip(asked, found, strict=True)]

    def _write(self, prompt: str, boxes: Sequence[Box]) -> str:
        sure = sorted((box for box in boxes if box.score >= self.threshold), key=lambda box: -box.score)
        return write_objects(list(dict.fromkeys(box.word for box in sure)), prompt, self.template)


@dataclass(frozen=True, eq=False)
class Other:
    """CICD: a picture of another sample, drawn by lot from `seed` and the sample's own picture."""

    pictures: Sequence[ImageSource]
    seed: int = 0

    def __call__(self, asked: Sequence[Asked]) -> list[Evidence | None]:
        return [self._draw(_key(row.picture)) for row in asked]

    def _draw(self, own: bytes) -> Evidence | None:
        """None if there is no other picture."""
        order = list(range(len(self.pictures)))
        random.Random(f"{self.seed} {own.hex()}").shuffle(order)
        others = (picture for picture in map(self._open, order) if _key(picture) != own)
        other = next(others, None)
        return None if other is None else Evidence((other,))

    def _open(self, number: int) -> Image.Image:
        return open_image(self.pictures[number])


def nested_boxes(box: Sides, fields: int, ratio: float) -> list[Sides]:
    """The box shrunk, the box, and the box grown again and again: `fields` of them."""
    nested = [resize(box, -min(ratio, MOST_SHRUNK)), box]
    while len(nested) < fields:
        nested.append(resize(nested[-1], ratio))
    return nested[:fields]


def resize(box: Sides, ratio: float) -> Sides:
    """A box that is larger by this share of its width and height, about its centre; clipped to the picture."""
    left, top, right, bottom = box
    dx, dy = (right - left) * ratio / 2, (bottom - top) * ratio / 2
    return max(left - dx, 0.0), max(top - dy, 0.0), min(right + dx, 1.0), min(bottom + dy, 1.0)


def crop(picture: Image.Image, box: Sides) -> Image.Image:
    """The box's pixels, and around a tiny one as many more as a picture must have."""
    left, right = _pixels(box[0], box[2], picture.width)
    top, bottom = _pixels(box[1], box[3], picture.height)
    return picture.crop((left, top, right, bottom))


def _pixels(low: float, high: float, side: int) -> tuple[int, int]:
    start, end = math.floor(low * side), math.ceil(high * side)
    if end - start < MIN_SIDE:
        start = min(max(0, (start + end - MIN_SIDE) // 2), max(0, side - MIN_SIDE))
        end = min(side, start + MIN_SIDE)
    return start, end


def plain_answers(model: Any, pictures: Sequence[Image.Image], prompts: Sequence[str], length: int) -> list[str]:
    """The plain model's greedy answers, whatever method is on."""
    backbone = Backbone.of(model)
    inputs = backbone.encode(pictures, prompts)
    with row_split_of(backbone.model).paused(), torch.no_grad():
        sequences: Tensor = generate_checked(backbone, inputs, greedy_config(backbone, length))
    new = sequences[:, inputs["input_ids"].shape[1] :]
    return [str(text).strip() for text in backbone.tokenizer.batch_decode(new, skip_special_tokens=True)]


def _key(picture: Image.Image) -> bytes:
    return picture_key(picture.size, picture_digest(picture))
