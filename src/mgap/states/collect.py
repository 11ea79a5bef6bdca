"""Head-input states at the last prompt position, batch by batch.

The state is caught at the door of the head (`hs[L]`, after the final norm), so no layer's states are kept or returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone


def blind_states(
    backbone: Backbone,
    prompts: Iterable[str],
    *,
    null_image: str = "black336",
    size: tuple[int, int] | None = None,
    batch_size: int = 8,
) -> Iterator[Tensor]:
    """Yield [b, d] float32 states on the CPU, one batch of prompts with a null image at a time."""
    remaining = iter(prompts)
    while batch := list(islice(remaining, batch_size)):
        yield last_states(backbone, backbone.blind(batch, null_image, size))


def last_states(backbone: Backbone, inputs: dict[str, Tensor]) -> Tensor:
    """The head's input at the last column of a left-padded batch: [B, d] float32 on the CPU."""
    with catch_states(backbone) as caught, torch.no_grad():
        backbone.model(**inputs, use_cache=False, logits_to_keep=1)
    return caught[0].float().cpu()


@contextmanager
def catch_states(backbone: Backbone) -> Iterator[list[Tensor]]:
    """Inside the block, every call of the head adds its input at the last column: [B, d], as the model has it."""
    caught: list[Tensor] = []

    def catch(_head: nn.Module, args: tuple[Tensor, ...]) -> None:
        caught.append(args[0][:, -1].detach())

    handle = backbone.head_module.register_forward_pre_hook(catch)
    try:
        yield caught
    finally:
        handle.remove()
