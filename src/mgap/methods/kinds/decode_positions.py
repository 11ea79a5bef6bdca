"""Rows that go on token by token: their positions, and what hides their padding, with as little done at a step as can be.

Left to itself, transformers looks at a batch's mask at every token, waiting for the GPU to learn whether one is needed, and
torch turns the one it makes into a bias again in every block: three kernels a block and more. Whether rows are padded is asked
once here, at the prompt. Rows that are not need no mask. For the others the bias is made once, wide enough for many steps, and
each step is handed a part of it. Kernels and caches that want something else get the usual mask, made once as well.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mgap.backbones.image_embeddings import Call
from mgap.methods.kinds.attention_interceptor import takes_bias

_ROOM = 256  # steps that a mask is made for at a time
_ALIGNED = 8  # numbers: where fused attention wants a row of a bias to start


class DecodePositions:
    """The rows of one forward of ours, after their prompt."""

    def __init__(self, mask: Tensor, positions: Tensor) -> None:
        self.mask, self.length = mask, mask.shape[1]  # [rows, prompt], 0 where a row is filled up; what is read by now
        self.positions = positions[..., -1:]  # the last ones, [..., rows, 1]
        self.is_padded = not bool(mask.all())
        self.hidden: Tensor | None = None  # [rows, length and more], or as a bias [rows, 1, 1, length and more]

    def step(self) -> None:
        """One token further."""
        self.length += 1
        self.positions = self.positions + 1

    def arguments(self, cache: DynamicCache, kernel: str) -> Call:
        """Where the forward of the newest token is, and what it hides of the keys in its cache, for an attention kernel."""
        return {"attention_mask": self._hiding(cache, kernel) if self.is_padded else None, "position_ids": self.positions}

    def whole_mask(self) -> Tensor:
        """[rows, length]."""
        return F.pad(self.mask, (0, self.length - self.mask.shape[1]), value=1)

    def twice(self) -> DecodePositions:
        """The same rows, and the same behind them."""
        return DecodePositions(self.mask.repeat(2, 1), torch.cat([self.positions, self.positions], -2))

    def reorder(self, rows: Tensor) -> None:
        self.mask, self.positions = self.mask[rows], self.positions.index_select(-2, rows)
        self.hidden = None if self.hidden is None else self.hidden[rows]

    def _hiding(self, cache: DynamicCache, kernel: str) -> Tensor:
        if self.hidden is None or self.hidden.shape[-1] < self.length:
            width = (self.length + _ROOM) // _ALIGNED * _ALIGNED
            self.hidden = F.pad(self.mask, (0, width - self.mask.shape[1]), value=1)
            if takes_bias(kernel) and all(type(layer) is DynamicLayer for layer in cache.layers):  # no window, no state
                keys = cache.layers[0].keys
                bias = torch.zeros(self.hidden.shape, dtype=keys.dtype, device=keys.device)
                self.hidden = bias.masked_fill_(self.hidden.to(keys.device) == 0, -torch.inf)[:, None, None]
        return self.hidden[..., : self.length]
