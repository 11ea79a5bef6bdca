"""Collect head-input states at the last prompt position, batch by batch.

Prompts with the same null image share its prefill: the picture goes through the model once, and a prompt costs its own tokens
(backbones/packed_prompts.py). Models that cannot share a prefill, and models with hooks, process picture and prompt row by row.
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
from mgap.backbones.null_images import null_image as make_null_image
from mgap.backbones.packed_prompts import Packed, pack, send
from mgap.backbones.shared_prefill import SharedPrefill, unshareable
from mgap.errors import ModelError, SettingError

SHARED_BATCH = {"cuda": 64, "cpu": 16}  # prompts per forward after a shared prefill; other devices count as cuda
ROW_BATCH = 8  # rows per forward, each with its picture


def blind_states(
    backbone: Backbone,
    prompts: Iterable[str],
    *,
    null_image: str = "black336",
    size: tuple[int, int] | None = None,
    batch_size: int | None = None,
) -> Iterator[Tensor]:
    """Yield [b, d] float32 states on the CPU, in the order of the prompts, one batch with a null image at a time.

    If prompts share the picture's prefill, `batch_size` is by default 64 on a GPU: a thousand tokens and more, which keep it
    busy with a large model and take a few GB besides the weights. On a CPU it is 16: less keeps it busy, and attention grows
    with the square of the packed length. If each prompt has its own picture, it is 8.
    """
    if batch_size is not None and batch_size < 1:
        raise SettingError(f"batch_size={batch_size} must be at least 1")
    picture = None
    if not is_hooked(backbone.model) and not unshareable(backbone):
        picture = make_null_image(null_image, backbone.processor, size)
    shared = None if picture is None else _prefill(backbone, picture)
    remaining = iter(prompts)

    def batches() -> Iterator[Tensor]:
        count = batch_size or (ROW_BATCH if shared is None else SHARED_BATCH.get(backbone.device.type, SHARED_BATCH["cuda"]))
        while batch := list(islice(remaining, count)):
            if picture is None or shared is None:
                yield _states(backbone, backbone.blind(batch, null_image, size))
            else:
                distinct = list(dict.fromkeys(batch))  # a repeated prompt is run once, so its states are bit-equal
                states = _packed_states(backbone, pack(shared, picture, distinct))
                yield states[send([distinct.index(prompt) for prompt in batch], states.device)]

    yield from _fetch(batches())


def last_states(backbone: Backbone, inputs: dict[str, Tensor]) -> Tensor:
    """The head's input at the last column of a left-padded batch: [B, d] float32 on the CPU."""
    return _states(backbone, inputs).float().cpu()


def _prefill(backbone: Backbone, picture: Image.Image) -> SharedPrefill | None:
    """The prefill of the picture that all prompts share; None for a processor that mixes pictures and words."""
    shared = SharedPrefill(backbone)
    try:
        shared.prefill([picture] * 2, ["Red?", "What is this?"])
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
    """Copy to the CPU in float32. From a GPU, a batch is copied while the next one is prepared, to avoid a wait."""
    copies: list[tuple[Tensor, torch.cuda.Event]] = []
    for states in batches:
        if not states.is_cuda:
            yield states.float().cpu()
            continue
        copy = torch.empty(states.shape, dtype=torch.float32, pin_memory=True)
        copy.copy_(states.float(), non_blocking=True)
        copies.append((copy, torch.cuda.current_stream(states.device).record_event()))
        if len(copies) > 1:
            yield _wait(*copies.pop(0))
    for pending in copies:
        yield _wait(*pending)


def _wait(states: Tensor, event: torch.cuda.Event) -> Tensor:
    event.synchronize()
    return states
