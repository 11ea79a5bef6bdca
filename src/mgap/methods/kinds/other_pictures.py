"""A branch that shows other pictures than the main rows, under the same prompts."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from mgap.backbones.base import Backbone
from mgap.backbones.prepared_pictures import Prepared, Preparer, picture_digest, picture_key, stack
from mgap.backbones.token_rows import Ids
from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.kinds.paired_forward import Inputs


def show_instead(backbone: Backbone, prepare: Preparer, main: Inputs, pictures: Sequence[Image.Image]) -> Inputs:
    """The main rows with other pictures, one for each that they show; a picture of another size changes its row's length.

    Beams repeat rows, not pictures. Refuses rows that do not show exactly one.
    """
    times, rest = divmod(len(main["input_ids"]), len(pictures))
    if rest or not times:
        raise UnsupportedDecoding(f"{len(main['input_ids'])} rows show {len(pictures)} pictures: give one picture a row")
    image, shown = backbone.image_token_id, _prepare_each_once(prepare, pictures)
    if any({*one.block} != {image} for one in shown):
        raise ModelError(f"{backbone.name} writes more than placeholders where a picture goes: it shows no other in its place")
    counts = iter([len(one.block) for one in shown for _ in range(times)])

    def edit(ids: Ids, _start: int, _end: int) -> Ids:
        first, count = ids.index(image), ids.count(image)
        return [*ids[:first], *[image] * next(counts), *ids[first + count :]]

    tensors = {key: stack([one.tensors[key] for one in shown]) for key in shown[0].tensors}
    pixels = {key: value.to(main[key]) if key in backbone.pixel_keys else value.to(main["input_ids"].device)
              for key, value in tensors.items()}  # fmt: skip
    return {**backbone.rewrite(main, edit), **pixels}


def _prepare_each_once(prepare: Preparer, pictures: Sequence[Image.Image]) -> list[Prepared]:
    keys = [picture_key(picture.size, picture_digest(picture)) for picture in pictures]
    prepared = {key: prepare(picture) for key, picture in dict(zip(keys, pictures, strict=True)).items()}
    return [prepared[key] for key in keys]
