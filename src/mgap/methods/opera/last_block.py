"""Attention weights of the newest tokens in the decoder's last block, read beside the model's own attention.

Every block uses torch's fused attention. In the last one the weights of a step's queries are computed as well, as the maximum
over heads. The same pass can separate candidates: alternatives for the next token are queries of one forward that see the past
and themselves but not each other, so they need no rows or caches of their own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mgap.errors import ModelError
from mgap.methods.kinds.attention_interceptor import AttentionPass, BlockAttention, scores_of, visible_keys
from mgap.methods.opera.overtrust import normalise


class LastBlockWeights(AttentionPass):
    """The pass of one forward, and the weights that it read."""

    def __init__(self, name: str, block: int | None = None, *, candidates: bool = False) -> None:
        """`block`: whose weights to read, None: none; `candidates`: the queries are alternatives for one position."""
        super().__init__(name)
        self.block, self.candidates = block, candidates
        self.weights: Tensor | None = None  # [rows, queries, keys], each sums to 1
        self.masks: dict[int, Tensor] = {}  # that separate candidates, by the number of keys

    def attend(self, block: BlockAttention) -> Tensor:
        if self.candidates and block.query.shape[2] > 1:
            block = replace(block, mask=self._candidate_mask(block))
        if block.index == self.block:
            self.weights = read_weights(block.query, block.key, block.mask, block.scaling)
        return block.fused()

    def read(self) -> Tensor:
        """The weights, once the forward is over."""
        if self.weights is None:
            raise ModelError(f"{self.name} read no attention weights: the model's last block has attention of its own")
        return self.weights

    def _candidate_mask(self, block: BlockAttention) -> Tensor:
        """Every candidate sees the past and itself: [B, 1, queries, kv]."""
        (rows, _, count, _), length, device = block.query.shape, block.key.shape[2], block.query.device
        if length not in self.masks:  # blocks share their masks
            past = torch.ones(rows, 1, 1, length, dtype=torch.bool, device=device)
            past = past if block.mask is None else visible_keys(block.mask[:, :, :1])
            itself = torch.eye(count, dtype=torch.bool, device=device).expand(*past.shape[:2], -1, -1)
            self.masks[length] = torch.cat([past[..., :-count].expand(-1, -1, count, -1), itself], dim=-1)
        return self.masks[length]


def read_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Weights [B, queries, kv] of a step's queries: the maximum over heads, normalised to sum to 1."""
    return normalise(scores_of(query, key, mask, scaling).softmax(-1).max(1).values)
