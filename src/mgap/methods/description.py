"""The model's own words about a picture, for methods that answer from them: asked for once, before the branch exists.

The plain model writes them, greedily, inside the first forward of the caller's generate (Pairing steps aside meanwhile). They
are kept for as long as the method is attached, by the picture's pixels: later questions about it cost nothing more.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import torch
from torch import Tensor
from transformers import GenerationConfig

from mgap.backbones.base import Backbone
from mgap.backbones.rows import ALONG, Ids, join_rows, split_rows
from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.pairing import Inputs


class Descriptions:
    """One text a row: what the model says to `prompt` about the row's picture, in at most `length` tokens."""

    def __init__(self, backbone: Backbone, prompt: str, length: int, *, keep: int = 256) -> None:
        self.backbone, self.length, self.keep = backbone, length, keep
        self.known: OrderedDict[bytes, str] = OrderedDict()  # picture -> text, the last used at the end
        self.image = str(backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id))
        self.text = backbone.render(prompt)
        if self.text.count(self.image) != 1:
            raise ModelError(f"{backbone.name}: its chat template does not write {self.image} once where the picture goes")

    def __call__(self, main: Inputs) -> list[str]:
        rows, pictures = split_rows(main), self.backbone.pictures(main)
        times, rest = divmod(len(rows), len(pictures))  # beams repeat rows, not pictures
        if rest or not times:
            raise UnsupportedDecoding(
                f"{len(rows)} rows show {len(pictures)} pictures or pieces of them: give one picture a row"
            )
        keys = [self._key(main, number) for number in range(len(pictures))]
        new = {key: number for number, key in enumerate(keys) if key not in self.known}  # each picture once
        said = {key: self.known[key] for key in keys if key in self.known}
        if new:
            said.update(zip(new, self._ask(main, [rows[n * times] for n in new.values()], list(new.values())), strict=True))
        for key, text in said.items():
            self.known[key] = text
            self.known.move_to_end(key)
        while len(self.known) > self.keep:
            self.known.popitem(last=False)
        return [said[key] for key in keys for _ in range(times)]

    def _ask(self, main: Inputs, rows: list[Ids], numbers: list[int]) -> list[str]:
        backbone, own = self.backbone, self.backbone.model.generation_config
        image, pad = backbone.image_token_id, backbone.pad_id
        asked = [backbone.tokenize(self.text.replace(self.image, self.image * row.count(image))) for row in rows]
        inputs = {**join_rows(asked, main, pad=pad, image=image), **self._pictures(main, numbers)}
        config = GenerationConfig(
            max_new_tokens=self.length, num_beams=1, do_sample=False, temperature=1.0, top_p=1.0, top_k=50,
            repetition_penalty=1.0, bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=pad,
        )  # fmt: skip
        try:
            with torch.no_grad():
                made = backbone.model.generate(**inputs, generation_config=config)[:, inputs["input_ids"].shape[1] :]
        except (TypeError, ValueError) as error:  # families that cut a picture into tiles need more than its pixels
            raise ModelError(f"{backbone.name}: its pictures cannot be shown again to describe them ({error})") from error
        return [str(text).strip() for text in backbone.tokenizer.batch_decode(made, skip_special_tokens=True)]

    def _pictures(self, main: Inputs, numbers: list[int]) -> Inputs:
        """Of some pictures: their pixels, and the row of whatever else the tower is told."""
        slices = self.backbone.pictures(main)
        return {
            key: torch.cat([value[slices[n]] for n in numbers]) if key in self.backbone.pixel_keys else value[numbers]
            for key, value in main.items()
            if key not in ALONG
        }

    def _key(self, main: Inputs, number: int) -> bytes:
        digest = hashlib.sha256()
        for tensor in self._pictures(main, [number]).values():
            digest.update(_bytes(tensor))
        return digest.digest()


def _bytes(tensor: Tensor) -> bytes:
    own = tensor.cpu().contiguous()
    return str(own.shape).encode() + own.reshape(-1).view(torch.uint8).numpy().tobytes()
