"""The largest attention weights of every main row's newest token, at each key: a mean over few blocks, then over few heads.

    B[h, j] = mean of the largest A[i, h, j] over blocks i,   M[j] = mean of the largest B[h, j] over heads h

Every key has blocks and heads of its own. Only the largest weights so far are kept, not those of all blocks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mgap.methods.kinds.attention_interceptor import BlockAttention
from mgap.methods.kinds.attention_weights import WatchedPass
from mgap.methods.kinds.main_rows import RowSplit

FEW = 3  # blocks, and heads


def keep_largest(kept: list[Tensor], new: Tensor, count: int = FEW) -> list[Tensor]:
    """The `count` largest values at each place, the largest first, of tensors in that order and a new one."""
    largest = []
    for old in kept:
        largest.append(torch.maximum(old, new))
        new = torch.minimum(old, new)
    return [*largest, new][:count]


def mean_of_largest(largest: list[Tensor], count: int = FEW) -> Tensor:
    """M [B, keys] from the largest weights over blocks [B, heads, keys]."""
    means = torch.stack(largest).mean(0)
    return means.topk(min(count, means.shape[1]), dim=1).values.mean(1)


class LargestWeights(WatchedPass):
    """The weights of one forward, in the rows that are the caller's."""

    def __init__(self, name: str, length: int, row_split: RowSplit) -> None:
        super().__init__(name, length)
        self.rows = row_split.main  # None: all
        self.largest: list[Tensor] = []  # [B, heads, positions so far] each

    def attend(self, block: BlockAttention) -> Tensor:
        rows = slice(self.rows)
        main = replace(block, query=block.query[rows], key=block.key[rows], mask=block.required_mask[rows])
        scores, _ = main.newest_scores()
        weights = self.pad(scores.softmax(-1)[:, :, -1])  # [B, heads, positions so far]
        self.largest = keep_largest(self.largest, weights.to(self.largest[0].device) if self.largest else weights)
        return block.fused()

    def read(self) -> Tensor | None:
        return mean_of_largest(self.largest) if self.largest else None
