"""Positions and padding masks of rows that decode token by token, with as little work per step as possible.

By default transformers inspects a batch's mask at every token, waiting for the GPU to learn whether one is needed, and torch
turns the mask into a bias again in every block: three or more kernels per block. Here we check once, at the prompt, whether
rows are padded. Unpadded rows need no mask. For the others we build the bias once, wide enough for many steps, and slice it at
each step. Kernels and caches that cannot take a bias get the usual mask, also built once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mgap.backbones.image_embeddings import Call
from mgap.methods.kinds.attention_interceptor import takes_bias

_STEPS_AHEAD = 256  # steps that a mask is built for at a time
_ALIGNMENT = 8  # elements: fused attention wants rows of a bias aligned to this


class DecodePositions:
    """The rows of one forward, after their prompt."""

    def __init__(self, mask: Tensor, positions: Tensor) -> None:
        self.mask, self.length = mask, mask.shape[1]  # [rows, prompt], 0 at padding; tokens read so far
        self.positions = positions[..., -1:]  # of the newest tokens, [..., rows, 1]
        self.is_padded = not bool(mask.all())
        self.wide_mask: Tensor | None = None  # [rows, length or more], or as a bias [rows, 1, 1, length or more]

    def step(self) -> None:
        """Advance by one token."""
        self.length += 1
        self.positions = self.positions + 1

    def arguments(self, cache: DynamicCache, kernel: str) -> Call:
        """Position ids and attention mask of the newest token's forward, for this cache and attention kernel."""
        return {"attention_mask": self._slice_mask(cache, kernel) if self.is_padded else None, "position_ids": self.positions}

    def whole_mask(self) -> Tensor:
        """[rows, length]."""
        return F.pad(self.mask, (0, self.length - self.mask.shape[1]), value=1)

    def joined(self, others: DecodePositions) -> DecodePositions:
        """The rows, followed by others; left padded to one length."""
        both = (self, others)
        length = max(rows.length for rows in both)
        mask = torch.cat([F.pad(rows.whole_mask(), (length - rows.length, 0)) for rows in both])
        return DecodePositions(mask, torch.cat([rows.positions for rows in both], -2))

    def reorder(self, rows: Tensor) -> None:
        self.mask, self.positions = self.mask[rows], self.positions.index_select(-2, rows)
        self.wide_mask = None if self.wide_mask is None else self.wide_mask[rows]

    def _slice_mask(self, cache: DynamicCache, kernel: str) -> Tensor:
        if self.wide_mask is None or self.wide_mask.shape[-1] < self.length:
            width = (self.length + _STEPS_AHEAD) // _ALIGNMENT * _ALIGNMENT
            self.wide_mask = F.pad(self.mask, (0, width - self.mask.shape[1]), value=1)
            if takes_bias(kernel) and all(
                type(layer) is DynamicLayer for layer in cache.layers
            ):  # no sliding window, no recurrent state
                keys = cache.layers[0].keys
                bias = torch.zeros(self.wide_mask.shape, dtype=keys.dtype, device=keys.device)
                self.wide_mask = bias.masked_fill_(self.wide_mask.to(keys.device) == 0, -torch.inf)[:, None, None]
        return self.wide_mask[..., : self.length]
