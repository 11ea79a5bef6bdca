"""Head-input states along plain greedy answers: one for every token, including the end token, but none for padding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.checked_generate import generate_checked
from mgap.backbones.greedy_config import greedy_config
from mgap.backbones.head_states import catch_states
from mgap.backbones.shared_vision import shared_pictures
from mgap.errors import ModelError, PromptError
from mgap.io.images import ImageSource
from mgap.priors.bank_files import Chunk

Row = tuple[ImageSource | None, str]


class Questions:
    """Pairs of a picture and a prompt, read once, with a checksum of those read so far.

    The checksum uses the name of a picture's file, without its folder, or the picture's pixels.
    """

    def __init__(self, images: Iterable[ImageSource | None], prompts: Iterable[str]) -> None:
        self._rows, self._sha, self.count = _pairs(images, prompts), hashlib.sha256(), 0

    @property
    def sha256(self) -> str:
        return self._sha.hexdigest()

    def take(self, count: int) -> list[Row]:
        """The next `count` pairs; fewer at the end."""
        batch = list(islice(self._rows, count))
        for image, prompt in batch:
            self._sha.update(json.dumps([_image_key(image), str(prompt)]).encode() + b"\n")
        self.count += len(batch)
        return batch


def _pairs(images: Iterable[ImageSource | None], prompts: Iterable[str]) -> Iterator[Row]:
    missing = object()
    for image, prompt in zip_longest(images, prompts, fillvalue=missing):
        if image is missing or prompt is missing:
            raise PromptError(f"more {'prompts than images' if image is missing else 'images than prompts'}: give one a prompt")
        yield image, prompt  # type: ignore[misc]  # neither is missing


def _image_key(image: ImageSource | None) -> str | None:
    if isinstance(image, Image.Image):
        return hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).hexdigest()
    return None if image is None else Path(image).name


def plain_states(backbone: Backbone, questions: Questions, *, batch_size: int, max_new_tokens: int) -> Iterator[Chunk]:
    """Answer the remaining questions, one chunk per batch; states are ordered by answer, then by token.

    Costs as much as plain generation: for one token, a prefill. A picture that rows of a batch share is encoded once.
    """
    config = greedy_config(backbone, max_new_tokens)
    while batch := questions.take(batch_size):
        images, prompts = map(list, zip(*batch, strict=True))
        inputs = backbone.encode(images, prompts)
        with catch_states(backbone) as caught, shared_pictures(backbone), torch.no_grad():
            generated: Tensor = generate_checked(backbone, inputs, config)
        tokens = generated[:, inputs["input_ids"].shape[1] :].cpu()  # [B, T]
        if [len(state) for state in caught] != [len(batch)] * tokens.shape[1]:
            raise ModelError(
                f"the head read {sum(map(len, caught))} states for {tokens.numel()} tokens: "
                "detach what acts on the model, a bank is of plain decoding"
            )
        mask = _answer_mask(tokens, config.eos_token_id)  # [B, T]
        rows, steps = mask.nonzero(as_tuple=True)
        yield Chunk(
            states=torch.stack(caught, 1).cpu()[mask],  # [n, d]
            rows=(rows + questions.count - len(batch)).int(),
            steps=steps.int(),
            tokens=tokens[mask].int(),
            questions_sha256=questions.sha256,
        )


def _answer_mask(tokens: Tensor, end: int | list[int] | None) -> Tensor:
    """Which tokens [B, T] belong to the answers: all up to and including the first end token."""
    ends = torch.isin(tokens, torch.tensor([] if end is None else end, dtype=tokens.dtype)).int()
    return ends.cumsum(1) - ends == 0
