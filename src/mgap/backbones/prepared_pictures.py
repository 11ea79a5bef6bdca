"""Pictures preprocessed apart from their prompts, and batches assembled from them.

Opening and preprocessing a picture is CPU work that does not depend on the prompt. So it is done once per picture, possibly in
another process while the model is busy (run/picture_workers.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from mgap.backbones.checkpoint_faults import tokenizer_faults
from mgap.backbones.decoding_limits import check_tokens
from mgap.backbones.token_rows import TOKEN_KEYS, Ids, join_rows
from mgap.errors import ImageError, ModelError, PromptError, one_line
from mgap.io.images import ImageSource

if TYPE_CHECKING:
    from mgap.backbones.base import Backbone


@dataclass(frozen=True)
class Prepared:
    """One preprocessed picture, on the CPU, for any prompt."""

    digest: str  # SHA-256 of the opened picture's pixels, as in records
    size: tuple[int, int]  # of the opened picture
    tensors: dict[str, Tensor]  # the processor's pixels and related tensors, with pictures as the first dimension
    block: tuple[int, ...]  # the tokens that replace its placeholder
    token_dtypes: dict[str, torch.dtype]  # of the [B, T] tensors that the processor returns

    @property
    def key(self) -> bytes:
        """Identifies the picture."""
        return picture_key(self.size, self.digest)

    def pin_memory(self) -> Prepared:
        """A copy in pinned memory; torch's DataLoader calls this."""
        return self._moved(Tensor.pin_memory)

    def clone(self) -> Prepared:
        """A copy in this process's own memory, which releases what a worker sent."""
        return self._moved(Tensor.clone)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Prepared:
        return replace(self, tensors={key: move(tensor) for key, tensor in self.tensors.items()})


Picture = ImageSource | Prepared
Shown = Picture | list[Picture] | tuple[Picture, ...] | None  # what a prompt shows: one picture, several in order, or none


def pictures_in(shown: Shown) -> list[Picture]:
    if shown is None:
        return []
    return list(shown) if isinstance(shown, list | tuple) else [shown]


def picture_digest(picture: Image.Image) -> str:
    return hashlib.sha256(picture.tobytes()).hexdigest()


def picture_key(size: tuple[int, int], digest: str) -> bytes:
    return f"{size} {digest}".encode()


class Preparer:
    """Turns opened pictures into prepared ones. Holds the processor but no model, so that it can be sent to a process."""

    def __init__(self, backbone: Backbone) -> None:
        self.name, self.processor = backbone.name, backbone.processor
        self.special = special_ids(backbone.tokenizer)
        self.text = backbone.render("?")
        self.before, self.after = around_picture(backbone, self.text)

    @classmethod
    def of(cls, backbone: Backbone) -> Preparer | None:
        """A preparer, or None if pictures cannot be prepared apart from prompts or the family does not declare it."""
        if backbone.processor is None or not backbone.prepares_pictures:
            return None
        try:
            preparer = cls(backbone)
            preparer(Image.new("RGB", (64, 64)))
        except (ImageError, ModelError, PromptError):  # an unusual chat template
            return None
        return preparer

    def __call__(self, picture: Image.Image) -> Prepared:
        inputs = process(self.processor, [picture], [self.text], self.name)
        block = block_between(inputs["input_ids"][0].tolist(), self.before, self.after, self.special, self.name)
        return Prepared(
            digest=picture_digest(picture),
            size=picture.size,
            tensors={key: tensor for key, tensor in inputs.items() if key not in TOKEN_KEYS},
            block=tuple(block),
            token_dtypes={key: tensor.dtype for key, tensor in inputs.items() if key in TOKEN_KEYS},
        )


def process(
    processor: Any, images: Sequence[Image.Image | list[Image.Image] | None], texts: Sequence[str], name: str
) -> dict[str, Tensor]:
    """Run rendered texts and their pictures through the processor: left padded, on the CPU."""
    bos = processor.tokenizer.bos_token
    options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
    if bos is not None and all(text.startswith(bos) for text in texts):
        options["add_special_tokens"] = False  # the template wrote it already
    nested = [[] if image is None else image if isinstance(image, list) else [image] for image in images]
    with processor_faults(name):
        inputs = processor(images=nested if any(nested) else None, text=list(texts), **options)
    return {key: value for key, value in inputs.items() if isinstance(value, Tensor)}


@contextmanager
def processor_faults(name: str) -> Iterator[None]:
    """What a processor raises inside the block becomes a sentence with the model's name."""
    try:
        with tokenizer_faults(name):
            yield
    except ValueError as error:
        raise ImageError(f"{name}: its processor refused the input: {one_line(error)}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError) as error:
        raise ModelError(f"{name}: its processor failed ({type(error).__name__}: {one_line(error)})") from error


def assemble(backbone: Backbone, images: Sequence[Prepared | None], texts: Sequence[str]) -> dict[str, Tensor]:
    """The processor's inputs for these rows, on the model's device; a picture's tensors are copied there once."""
    shown = [image for image in images if image is not None]
    rows = []
    for image, text in zip(images, texts, strict=True):
        if image is None:
            rows.append(backbone.tokenize(text))
        else:
            before, after = around_picture(backbone, text)
            rows.append([*before, *image.block, *after])
    check_tokens(backbone, rows)
    device = backbone.device
    like = {key: torch.empty(0, dtype=kind, device=device) for key, kind in shown[0].token_dtypes.items()}
    joined = join_rows(rows, like, pad=backbone.tokenizer.pad_token_id, image=backbone.image_token_id)
    on_device: dict[bytes, Mapping[str, Tensor]] = {}
    for image in shown:
        if image.key not in on_device:
            on_device[image.key] = {name: part.to(device, non_blocking=True) for name, part in image.tensors.items()}
    return joined | {name: stack([on_device[image.key][name] for image in shown]) for name in shown[0].tensors}


def stack(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate pictures; those with fewer or smaller tiles are zero padded at the end, as processors do."""
    sizes = [max(lengths) for lengths in zip(*(part.shape[1:] for part in parts), strict=True)]
    return torch.cat([_pad(part, sizes) for part in parts])


def _pad(part: Tensor, sizes: Sequence[int]) -> Tensor:
    missing = [target - size for target, size in zip(sizes, part.shape[1:], strict=True)]
    return F.pad(part, [n for more in reversed(missing) for n in (0, more)]) if any(missing) else part


def special_ids(tokenizer: Any) -> set[int]:
    """Tokens that no neighbouring text can merge with."""
    return {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}


def around_picture(backbone: Backbone, text: str) -> tuple[Ids, Ids]:
    """The tokens before and after the picture's placeholder in a rendered text."""
    ids, image = backbone.tokenize(text), backbone.image_token_id
    if ids.count(image) != 1:
        raise PromptError(f"a prompt of {backbone.name} shows {ids.count(image)} pictures: give one picture a row")
    before = list(takewhile(lambda token: token != image, ids))
    return before, ids[len(before) + 1 :]


def block_between(ids: Ids, before: Ids, after: Ids, special: Collection[int], name: str) -> Ids:
    """The tokens that replaced the placeholder between `before` and `after`."""
    block = ids[len(before) : len(ids) - len(after)]
    if before + block + after != ids or not block or not {*block[:1], *block[-1:]} <= {*special}:
        raise ModelError(
            f"{name}: its processor writes more than a picture where the picture goes, "
            'and the prompt may run into it: use prefill="own"'
        )
    return block
