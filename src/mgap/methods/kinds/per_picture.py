"""The pictures among encoded inputs, one by one: told apart by their pixels, and shown again to the plain model.

For methods that find something out about a picture before they decode. The model runs inside the first forward of the caller's
generate (Pairing steps aside meanwhile); what it found is kept for as long as the method is attached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.greedy_config import greedy_config
from mgap.backbones.image_embeddings import Call, ImageEmbedder, join_pictures
from mgap.backbones.shared_vision import digest
from mgap.backbones.token_rows import TOKEN_KEYS, join_rows, split_rows
from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.kinds.paired_forward import Inputs

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """One picture of the inputs in hand."""

    pixels: Inputs  # and whatever else the tower is told of it
    tokens: int  # how many placeholders stand for it in a prompt
    like: Inputs  # the prompts it came with, for their types and device
    key: bytes


class PerPicture(ABC, Generic[Found]):
    """One result a row: what `find` says of the row's picture, once for as long as it is among the last `keep`."""

    def __init__(self, backbone: Backbone, *, keep: int = 256) -> None:
        self.backbone, self.keep = backbone, keep
        self.known: OrderedDict[bytes, Found] = OrderedDict()  # the last used at the end

    @abstractmethod
    def find(self, pictures: list[EncodedPicture]) -> list[Found]:
        """One result a picture; they differ from each other, and none is known yet."""

    def __call__(self, main: Inputs) -> list[Found]:
        pictures, times = self._pictures(main)
        found = {picture.key: self.known[picture.key] for picture in pictures if picture.key in self.known}
        new = {picture.key: picture for picture in pictures if picture.key not in found}  # each picture once
        if new:
            found.update(zip(new, self.find(list(new.values())), strict=True))
        for key, result in found.items():
            self.known[key] = result
            self.known.move_to_end(key)
        while len(self.known) > self.keep:
            self.known.popitem(last=False)
        return [found[picture.key] for picture in pictures for _ in range(times)]

    def _pictures(self, main: Inputs) -> tuple[list[EncodedPicture], int]:
        """Those of the inputs, and how many rows each of them has."""
        rows, slices = split_rows(main), self.backbone.pictures(main)
        times, rest = divmod(len(rows), len(slices))  # beams repeat rows, not pictures
        if rest or not times:
            raise UnsupportedDecoding(f"{len(rows)} rows show {len(slices)} pictures or pieces of them: give one picture a row")
        like = {key: value for key, value in main.items() if key in TOKEN_KEYS}
        pictures = []
        for number, part in enumerate(slices):
            pixels = {
                key: value[part] if key in self.backbone.pixel_keys else value[[number]]
                for key, value in main.items()
                if key not in TOKEN_KEYS
            }
            tokens = rows[number * times].count(self.backbone.image_token_id)
            pictures.append(EncodedPicture(pixels, tokens, like, digest(*pixels.values())))
        return pictures, times


def placeholder(backbone: Backbone) -> str:
    """What a chat template writes where a picture goes."""
    return str(backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id))


def render(backbone: Backbone, prompt: str) -> str:
    """The prompt as the model reads it, with one placeholder, or an error."""
    text, image = backbone.render(prompt), placeholder(backbone)
    if text.count(image) != 1:
        raise ModelError(f"{backbone.name}: its chat template does not write {image} once where the picture goes")
    return text


def expand(backbone: Backbone, text: str, picture: EncodedPicture) -> str:
    """A rendered text with as many placeholders as the picture needs."""
    image = placeholder(backbone)
    return text.replace(image, image * picture.tokens)


def show(backbone: Backbone, pictures: Sequence[EncodedPicture], texts: Sequence[str]) -> tuple[Call, Any]:
    """Inputs of a generate in which each picture stands in every rendered text, and the pictures, each encoded once."""
    rows = [backbone.tokenize(expand(backbone, text, picture)) for picture in pictures for text in texts]
    pixels = {key: torch.cat([picture.pixels[key] for picture in pictures]) for key in pictures[0].pixels}
    inputs: Call = dict(join_rows(rows, pictures[0].like, pad=backbone.pad_id, image=backbone.image_token_id))
    inputs.update(
        (key, value.repeat_interleave(len(texts), 0)) for key, value in pixels.items() if key not in backbone.pixel_keys
    )
    with torch.no_grad():
        encoded = backbone.encode_pictures(pixels)
    if [len(part) for part in encoded.pooler_output] != [picture.tokens for picture in pictures]:  # a tile is no picture
        raise ModelError(f"{backbone.name}: a picture shown again has another length; its pictures are cut into pieces")
    return inputs, join_pictures([encoded], len(texts))


def generate(backbone: Backbone, inputs: Call, features: Any, length: int) -> Tensor:
    """What `show` gives to new tokens [rows, at most length] of the plain model, greedily."""
    with torch.no_grad(), ImageEmbedder(backbone).for_generate(inputs, features) as call:
        made: Any = backbone.model.generate(**call, generation_config=greedy_config(backbone, length))
    tokens: Tensor = made[:, inputs["input_ids"].shape[1] :]
    return tokens


def write(backbone: Backbone, pictures: Sequence[EncodedPicture], texts: Sequence[str], length: int) -> list[str]:
    """What the plain model says to every text about each picture, one picture after the other."""
    made = generate(backbone, *show(backbone, pictures, texts), length)
    return [str(said).strip() for said in backbone.tokenizer.batch_decode(made, skip_special_tokens=True)]
