"""Attention weights of every row's newest token, averaged over heads, and a choice by them.

Only watched forwards pay for it: they compute the last query's scores beside torch's fused attention. All other forwards keep
the model's own kernel, and no weights of the size of the prompt squared are computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

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


class WatchedPass(AttentionPass, ABC):
    """One watched forward, and what it reads of the newest tokens' weights."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name)
        self.length = length  # positions so far

    @abstractmethod
    def read(self) -> Tensor | None:
        """What was read; None if no block has called."""

    def pad(self, weights: Tensor) -> Tensor:
        """Weights [..., kv] for all positions so far; a sliding window keeps the newest keys only, the others get 0."""
        return F.pad(weights, (self.length - weights.shape[-1], 0))


class NewestWeights(WatchedPass):
    """The weights of one forward, averaged over heads, block by block."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name, length)
        self.blocks: list[Tensor] = []  # [B, positions so far] each

    def attend(self, block: BlockAttention) -> Tensor:
        scores, _ = block.newest_scores()
        self.add(mean_of_heads(scores.softmax(-1)))
        return block.fused()

    def add(self, weights: Tensor) -> None:
        """Add one block's weights [B, kv]."""
        self.blocks.append(self.pad(weights))

    def read(self) -> Tensor | None:
        """[blocks, B, positions so far]."""
        return torch.stack([weights.to(self.blocks[0].device) for weights in self.blocks]) if self.blocks else None


class AttentionWatch:
    """Watches a model for the method `name`: `start` before a forward, `take` after it, `stop` if it may have failed."""

    def __init__(self, backbone: Backbone, name: str, begin: Callable[[str, int], WatchedPass] = NewestWeights) -> None:
        """`begin` makes the pass of a watched forward from the method's name and the number of positions so far."""
        self.name, self.begin = name, begin
        self.passes: list[WatchedPass] = []  # of the forward that is watched
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
        """What the watched forward has read."""
        found = self.passes[-1].read() if self.passes else None
        self.stop()
        if found is None:
            raise ModelError(f"this model's forward does not pass through its text decoder: {self.name} cannot watch it")
        return found

    def _begin(self, _kwargs: Call, length: int) -> WatchedPass:
        self.passes.append(self.begin(self.name, length))
        return self.passes[-1]
