"""Prompts about one picture, packed into one row: each sees the picture and its own words, and nothing of the others.

    cache  [beginning that all of them share]
    row    [rest of prompt 1 | rest of prompt 2 | ...]

Where only what a prompt ends in is asked for, and no token is made, this is the cheapest form of a shared prefill
(backbones/shared_prefill.py): the picture has its keys and values once and not once a prompt, and no row is filled up to
the length of the longest. A token sees the beginning, as far as its prompt agrees with it, and its own prompt so far;
positions are those that each prompt has alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from mgap.backbones.shared_prefill import Inputs, SharedPrefill, alias, common
from mgap.io.images import ImageSource


@dataclass(frozen=True)
class Packed:
    """What a forward reads; Q tokens, B of them the last of a prompt, behind a beginning of P."""

    inputs: Inputs  # ids [1, Q], positions [..., 1, Q], what is added to scores [1, 1, Q, P + Q], columns of the ends [B]
    cache: DynamicCache


def pack(shared: SharedPrefill, image: ImageSource, prompts: Sequence[str]) -> Packed:
    """Prompts about the picture behind their common beginning, which is read unless `shared` holds it from the last batch."""
    begun = shared.begin([image] * len(prompts), prompts)
    backbone, held, (begin,) = shared.backbone, begun.held, begun.held.begins
    ((_, before), block), *_ = held.blocks.items()
    front = len(before) + len(block)  # up to the picture's last token all are alike
    ids, owners, known, ends = [], [], [], []
    steps: list[int] = []
    for number, row in enumerate(begun.rows):
        alike = min(front + common([begin[front:], row[front:]]), len(row) - 1)
        rest = row[alike:]
        ids += rest
        owners += [number] * len(rest)
        known += [alike] * len(rest)
        steps += range(alike - len(begin), len(row) - len(begin))
        ends.append(len(ids) - 1)
    device, dtype = backbone.device, backbone.model.dtype
    sent = send([ids, owners, known, steps], device)  # [4, Q]
    allowed = torch.cat([_sees_beginning(sent[2], len(begin)), _sees_own(sent[1])], dim=1)  # [Q, P + Q]
    mask = torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill_(~allowed, torch.finfo(dtype).min)
    inputs = {
        "input_ids": sent[:1],
        "attention_mask": mask[None, None],
        "position_ids": held.following + sent[3],
        "logits_to_keep": send(ends, device),
    }
    return Packed(inputs, alias(held.cache))


def send(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Whole numbers on the device; a card takes them when it comes to it, and nobody waits."""
    here = torch.tensor(values)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)


def _sees_beginning(known: Tensor, length: int) -> Tensor:
    return torch.arange(length, device=known.device) < known[:, None]  # [Q, P]


def _sees_own(owners: Tensor) -> Tensor:
    return (owners[:, None] == owners).tril()  # [Q, Q]
