"""Run the plain model on single pictures of the encoded inputs, and cache the results by the pictures' pixels.

For methods that find something out about a picture before they decode. The model runs inside the first forward of the caller's
`generate`, while the hooks of `PairedForward` do nothing. Results are kept while the method is attached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.checked_generate import generate_checked
from mgap.backbones.greedy_config import greedy_config
from mgap.backbones.image_embeddings import Call, ImageEmbedder, join_pictures
from mgap.backbones.shared_vision import digest
from mgap.backbones.token_rows import TOKEN_KEYS, Ids, find_block, join_rows, split_rows
from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.kinds.last_used import LastUsed
from mgap.methods.kinds.paired_forward import Inputs

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """One picture of the current inputs."""

    pixels: Inputs  # and the tower's other inputs
    tokens: int  # its number of placeholders in a prompt
    like: Inputs  # the prompts it came with, for their dtypes and device
    key: bytes


class PerPicture(ABC, Generic[Result]):
    """One result per row: what `find` returns for the row's picture. The last `keep` pictures are cached."""

    def __init__(self, backbone: Backbone, *, keep: int = 256) -> None:
        self.backbone = backbone
        self.cache = LastUsed[bytes, Result](keep)

    @abstractmethod
    def find(self, pictures: list[EncodedPicture]) -> list[Result]:
        """One result per picture; the pictures are distinct, and none is cached."""

    def __call__(self, main: Inputs) -> list[Result]:
        pictures, times = pictures_of(self.backbone, main)
        results = {picture.key: self.cache[picture.key] for picture in pictures if picture.key in self.cache}
        new = {picture.key: picture for picture in pictures if picture.key not in results}  # each picture once
        if new:
            results.update(zip(new, self.find(list(new.values())), strict=True))
        self.cache.update(results)
        return [results[picture.key] for picture in pictures for _ in range(times)]


def pictures_of(backbone: Backbone, main: Inputs) -> tuple[list[EncodedPicture], int]:
    """The pictures of the inputs, and the number of rows of each."""
    rows, slices = split_rows(main), backbone.pictures(main)
    times, rest = divmod(len(rows), len(slices))  # beams repeat rows, not pictures
    if rest or not times:
        raise UnsupportedDecoding(f"{len(rows)} rows show {len(slices)} pictures or pieces of them: give one picture a row")
    like = {key: value for key, value in main.items() if key in TOKEN_KEYS}
    pictures = []
    for number, part in enumerate(slices):
        pixels = {key: pixels_of(backbone, main, key, number, part) for key in main if key not in TOKEN_KEYS}
        tokens = rows[number * times].count(backbone.image_token_id)
        pictures.append(EncodedPicture(pixels, tokens, like, digest(*pixels.values())))
    return pictures, times


def pixels_of(backbone: Backbone, inputs: Inputs, key: str, number: int, part: slice) -> Tensor:
    """What a key of the inputs holds of one picture: its pixels, or its row of anything else."""
    return inputs[key][part] if key in backbone.pixel_keys else inputs[key][[number]]


def placeholder(backbone: Backbone) -> str:
    """The text that a chat template writes for a picture."""
    return str(backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id))


def render(backbone: Backbone, prompt: str) -> str:
    """The prompt in the chat template, with exactly one placeholder; raises otherwise."""
    text, image = backbone.render(prompt), placeholder(backbone)
    if text.count(image) != 1:
        raise ModelError(f"{backbone.name}: its chat template does not write {image} once where the picture goes")
    return text


def expand(backbone: Backbone, text: str, picture: EncodedPicture) -> str:
    """A rendered text with as many placeholders as the picture needs."""
    image = placeholder(backbone)
    return text.replace(image, image * picture.tokens)


def reword(backbone: Backbone, prompt: str, ids: Ids) -> Ids:
    """The tokens of another prompt about the picture of a row, with the markers that the processor writes around it."""
    image, markers = backbone.image_token_id, backbone.image_block_ids
    other = backbone.tokenize(render(backbone, prompt))
    (start, end), (first, last) = (find_block(row, image, markers) for row in (other, ids))
    return other[:start] + ids[first:last] + other[end:]


def show(backbone: Backbone, pictures: Sequence[EncodedPicture], texts: Sequence[str]) -> tuple[Call, Any]:
    """Inputs for `generate` that combine each picture with every rendered text, and the pictures, each encoded once."""
    rows = [backbone.tokenize(expand(backbone, text, picture)) for picture in pictures for text in texts]
    pixels = {key: torch.cat([picture.pixels[key] for picture in pictures]) for key in pictures[0].pixels}
    inputs: Call = dict(join_rows(rows, pictures[0].like, pad=backbone.pad_id, image=backbone.image_token_id))
    inputs.update(
        (key, value.repeat_interleave(len(texts), 0)) for key, value in pixels.items() if key not in backbone.pixel_keys
    )
    with torch.no_grad():
        encoded = backbone.encode_pictures(pixels)
    if [len(part) for part in encoded.pooler_output] != [picture.tokens for picture in pictures]:  # tiles are not pictures
        raise ModelError(f"{backbone.name}: a picture shown again has another length; its pictures are cut into pieces")
    return inputs, join_pictures([encoded], len(texts))


def generate(backbone: Backbone, inputs: Call, features: Any, length: int) -> Tensor:
    """The plain model's greedy new tokens [rows, at most length] for what `show` returned."""
    with torch.no_grad(), ImageEmbedder(backbone).for_generate(inputs, features) as call:
        sequences: Any = generate_checked(backbone, call, greedy_config(backbone, length))
    tokens: Tensor = sequences[:, inputs["input_ids"].shape[1] :]
    return tokens


def write(backbone: Backbone, pictures: Sequence[EncodedPicture], texts: Sequence[str], length: int) -> list[str]:
    """The plain model's answers to every text about each picture, in the order of the pictures."""
    tokens = generate(backbone, *show(backbone, pictures, texts), length)
    return [str(answer).strip() for answer in backbone.tokenizer.batch_decode(tokens, skip_special_tokens=True)]
