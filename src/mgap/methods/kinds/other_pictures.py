"""A branch whose rows show other pictures than the main rows do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from mgap.backbones.base import Backbone
from mgap.backbones.prepared_pictures import picture_digest, picture_key
from mgap.backbones.token_rows import TOKEN_KEYS, Ids, find_block, join_rows, split_rows
from mgap.errors import ModelError
from mgap.methods.kinds.paired_forward import SHOWS, Inputs


def show_pictures(backbone: Backbone, main: Inputs, rows: Sequence[Ids], pictures: Sequence[Image.Image | None]) -> Inputs:
    """The rows, each with this picture in the place of its own, which may be of another size; None: with its own.

    Equal pictures are encoded once: beams, samples and questions share them. Refuses pictures in pieces.
    """
    keys = [None if picture is None else picture_key(picture.size, picture_digest(picture)) for picture in pictures]
    own = {key: picture for key, picture in zip(keys, pictures, strict=True) if picture is not None}
    image, blocks, pixels = backbone.image_token_id, dict[bytes | None, Ids](), dict(main)  # with the main rows' very pictures
    if own and backbone.pictures_read_prompts:
        raise ModelError(
            f"{backbone.name} reads a picture with its prompt in mind, so that another picture cannot take its place in "
            "a branch: use a method that changes the picture itself, or leaves it out"
        )
    if own:
        encoded = backbone.encode(list(own.values()), ["?"] * len(own))
        blocks = {key: ids[slice(*find_block(ids, image, ()))] for key, ids in zip(own, split_rows(encoded), strict=True)}
        pixels = {key: value for key, value in encoded.items() if key not in TOKEN_KEYS}
        pixels |= {key: pixels[key].to(main[key].dtype) for key in backbone.pixel_keys}
        pixels[SHOWS] = torch.tensor([-1 if key is None else list(own).index(key) for key in keys])

    def show(ids: Ids, key: bytes | None) -> Ids:
        if key is None:
            return ids
        start, end = find_block(ids, image, ())
        return [*ids[:start], *blocks[key], *ids[end:]]

    shown = [show(ids, key) for ids, key in zip(rows, keys, strict=True)]
    return {**pixels, **join_rows(shown, main, pad=backbone.pad_id, image=image)}
