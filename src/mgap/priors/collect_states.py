"""Head-input states at the last prompt position, batch by batch.

Prompts that meet one null image share its prefill: the picture goes through the model once, and a prompt costs its own words
(backbones/packed_prompts.py). Models that cannot share, and models with hooks on them, read picture and prompt row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from PIL import Image
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head_states import catch_states
from mgap.backbones.hooks import is_hooked
from mgap.backbones.null_images import null_image as see_nothing
from mgap.backbones.packed_prompts import Packed, pack, send
from mgap.backbones.shared_prefill import SharedPrefill, unshareable
from mgap.errors import ModelError, SettingError

TOGETHER = {"cuda": 64, "cpu": 16}  # prompts a forward behind one picture, by device; others count as cards
APART = 8  # with a picture each


def blind_states(
    backbone: Backbone,
    prompts: Iterable[str],
    *,
    null_image: str = "black336",
    size: tuple[int, int] | None = None,
    batch_size: int | None = None,
) -> Iterator[Tensor]:
    """Yield [b, d] float32 states on the CPU in the order of the prompts, one batch with a null image at a time.

    Where prompts share the picture's prefill, `batch_size` is by default 64 on a card: a thousand tokens and more, which keep
    it busy with a large model and take a few GB beside the weights. It is 16 on a CPU, which is busy with less; attention grows
    with the square of what is packed. Where each prompt brings a picture it is 8.
    """
    if batch_size is not None and batch_size < 1:
        raise SettingError(f"batch_size={batch_size} must be at least 1")
    picture = None
    if not is_hooked(backbone.model) and not unshareable(backbone):
        picture = see_nothing(null_image, backbone.processor, size)
    shared = None if picture is None else _read(backbone, picture)
    remaining = iter(prompts)

    def batches() -> Iterator[Tensor]:
        count = batch_size or (APART if shared is None else TOGETHER.get(backbone.device.type, TOGETHER["cuda"]))
        while batch := list(islice(remaining, count)):
            if picture is None or shared is None:
                yield _states(backbone, backbone.blind(batch, null_image, size))
            else:
                different = list(dict.fromkeys(batch))  # what is asked twice is read once, and has one state to the last digit
                states = _packed_states(backbone, pack(shared, picture, different))
                yield states[send([different.index(prompt) for prompt in batch], states.device)]

    yield from _fetch(batches())


def last_states(backbone: Backbone, inputs: dict[str, Tensor]) -> Tensor:
    """The head's input at the last column of a left-padded batch: [B, d] float32 on the CPU."""
    return _states(backbone, inputs).float().cpu()


def _read(backbone: Backbone, picture: Image.Image) -> SharedPrefill | None:
    """The picture's prefill, as far as any two prompts share it; None for a processor that mixes pictures and words."""
    shared = SharedPrefill(backbone)
    try:
        shared.begin([picture] * 2, ["Red?", "What is this?"])
    except ModelError:
        return None
    return shared


def _states(backbone: Backbone, inputs: dict[str, Tensor]) -> Tensor:
    with catch_states(backbone) as caught, torch.no_grad():
        backbone.model(**inputs, use_cache=False, logits_to_keep=1)
    return caught[0]  # [B, d]


def _packed_states(backbone: Backbone, packed: Packed) -> Tensor:
    with catch_states(backbone, last=False) as caught, torch.no_grad():
        backbone.model(**packed.inputs, past_key_values=packed.cache, use_cache=True)
    return caught[0][0]  # [B, d]


def _fetch(batches: Iterator[Tensor]) -> Iterator[Tensor]:
    """Float32 on the CPU. A card is left alone: a batch is copied while the next one is prepared, and waited for after that."""
    under_way: list[tuple[Tensor, torch.cuda.Event]] = []
    for states in batches:
        if not states.is_cuda:
            yield states.float().cpu()
            continue
        here = torch.empty(states.shape, dtype=torch.float32, pin_memory=True)
        here.copy_(states.float(), non_blocking=True)
        under_way.append((here, torch.cuda.current_stream(states.device).record_event()))
        if len(under_way) > 1:
            yield _arrived(*under_way.pop(0))
    for waiting in under_way:
        yield _arrived(*waiting)


def _arrived(states: Tensor, event: torch.cuda.Event) -> Tensor:
    event.synchronize()
    return states
