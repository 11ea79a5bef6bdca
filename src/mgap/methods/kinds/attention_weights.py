"""Attention weights of every row's newest token, averaged over heads, and a choice by them.

Only watched forwards pay for it: they compute the last query's scores beside torch's fused attention. All other forwards keep
the model's own kernel, and no weights of the size of the prompt squared are computed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import ModelError
from mgap.methods.kinds.attention_interceptor import AttentionInterceptor, AttentionPass, BlockAttention


def mean_of_heads(weights: Tensor) -> Tensor:
    """The last query's weights, averaged over heads: [..., heads, queries, kv] to [..., kv]."""
    return weights[..., -1, :].mean(-2)


def least_attended(attention: Tensor, images: Tensor, counts: Tensor) -> Tensor:
    """The image positions of least attention, bool [B, T], `counts` [B] in each row; of equal weights, the first positions."""
    order = attention.masked_fill(~images, torch.inf).argsort(dim=-1, stable=True)
    rank = order.argsort(dim=-1)  # [B, T]
    return images & (rank < counts.unsqueeze(-1))


class NewestWeights(AttentionPass):
    """The weights of one forward, block by block."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name)
        self.length = length
        self.blocks: list[Tensor] = []  # [B, positions so far] each

    def attend(self, block: BlockAttention) -> Tensor:
        scores, _ = block.newest_scores()
        self.add(mean_of_heads(scores.softmax(-1)))
        return block.fused()

    def add(self, weights: Tensor) -> None:
        """Add one block's weights [B, kv]; a sliding window keeps the newest keys only, the others get 0."""
        self.blocks.append(F.pad(weights, (self.length - weights.shape[1], 0)))


class AttentionWatch:
    """Watches a model for the method `name`: `start` before a forward, `take` after it, `stop` if it may have failed."""

    def __init__(self, backbone: Backbone, name: str) -> None:
        self.name, self.passes = name, list[NewestWeights]()  # of the forward that is watched
        self.interceptor = AttentionInterceptor(backbone, name, self._begin)

    @property
    def is_on(self) -> bool:
        return self.interceptor.is_on

    def start(self) -> None:
        self.stop()
        self.interceptor.start()

    def stop(self) -> None:
        """Restore the model's own kernel and discard what was read."""
        self.interceptor.stop()
        self.passes.clear()

    def take(self) -> Tensor:
        """The weights of the watched forward, [blocks, B, positions so far]."""
        blocks = self.passes[-1].blocks if self.passes else []
        self.stop()
        if not blocks:
            raise ModelError(f"this model's forward does not pass through its text decoder: {self.name} cannot watch it")
        return torch.stack([weights.to(blocks[0].device) for weights in blocks])

    def _begin(self, _kwargs: Call, length: int) -> NewestWeights:
        self.passes.append(NewestWeights(self.name, length))
        return self.passes[-1]
