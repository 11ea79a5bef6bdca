"""Prompts about one picture, packed into one row: each sees the picture and its own text, and nothing of the others.

    cache  [prefix that all of them share]
    row    [rest of prompt 1 | rest of prompt 2 | ...]

If only the state at the end of each prompt is needed, and no token is generated, this is the cheapest form of a shared prefill
(backbones/shared_prefill.py): the picture's keys and values exist once instead of once per prompt, and no row is padded to the
longest. A token attends to the prefix, as far as its prompt agrees with it, and to its own prompt so far. Positions are those
that each prompt has alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from mgap.backbones.shared_prefill import Inputs, SharedPrefill, common_length, shallow_copy
from mgap.io.images import ImageSource


@dataclass(frozen=True)
class Packed:
    """Inputs of one forward: Q tokens after a prefix of P; B of them end a prompt."""

    inputs: Inputs  # ids [1, Q], positions [..., 1, Q], additive mask [1, 1, Q, P + Q], columns of the prompts' ends [B]
    cache: DynamicCache


def pack(shared: SharedPrefill, image: ImageSource, prompts: Sequence[str]) -> Packed:
    """Pack prompts behind their common prefix, which is run unless `shared` still holds it from the last batch."""
    prefilled = shared.prefill([image] * len(prompts), prompts)
    backbone, held, (prefix,) = shared.backbone, prefilled.held, prefilled.held.prefixes
    ((_, before), block), *_ = held.blocks.items()
    front = len(before) + len(block)  # all prompts agree up to the picture's last token
    ids, owners, visible, ends = [], [], [], []
    steps: list[int] = []
    for number, row in enumerate(prefilled.rows):
        alike = min(front + common_length([prefix[front:], row[front:]]), len(row) - 1)
        rest = row[alike:]
        ids += rest
        owners += [number] * len(rest)
        visible += [alike] * len(rest)
        steps += range(alike - len(prefix), len(row) - len(prefix))
        ends.append(len(ids) - 1)
    device, dtype = backbone.device, backbone.model.dtype
    sent = send([ids, owners, visible, steps], device)  # [4, Q]
    allowed = torch.cat([_prefix_mask(sent[2], len(prefix)), _prompt_mask(sent[1])], dim=1)  # [Q, P + Q]
    mask = torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill_(~allowed, torch.finfo(dtype).min)
    inputs = {
        "input_ids": sent[:1],
        "attention_mask": mask[None, None],
        "position_ids": held.next_positions + sent[3],
        "logits_to_keep": send(ends, device),
    }
    return Packed(inputs, shallow_copy(held.cache))


def send(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """An integer tensor on the device; the copy to a GPU does not block."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _prefix_mask(visible: Tensor, length: int) -> Tensor:
    return torch.arange(length, device=visible.device) < visible[:, None]  # [Q, P]


def _prompt_mask(owners: Tensor) -> Tensor:
    return (owners[:, None] == owners).tril()  # [Q, Q]
