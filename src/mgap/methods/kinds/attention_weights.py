"""Attention weights of every row's newest token, averaged over heads and summed over blocks.

Only watched forwards pay for it: they compute the last query's scores beside torch's fused attention. All other forwards keep
the model's own kernel, and no weights of the size of the prompt squared are computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import ModelError
from mgap.methods.kinds.attention_interceptor import AttentionInterceptor, AttentionPass, BlockAttention


def mean_of_heads(weights: Tensor) -> Tensor:
    """The last query's weights, averaged over heads: [..., heads, queries, kv] to [..., kv]."""
    return weights[..., -1, :].mean(-2)


def pad_keys(weights: Tensor, length: int) -> Tensor:
    """Weights [..., kv] for all positions so far: a sliding window keeps the newest keys only, the others get 0."""
    return F.pad(weights, (length - weights.shape[-1], 0))


class WatchedPass(AttentionPass, ABC):
    """The weights of one forward's newest tokens, or what a method makes of them block by block."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name)
        self.length = length  # positions so far

    @abstractmethod
    def read(self) -> Tensor | None:
        """What was read; None if no block has called."""


class SummedWeights(WatchedPass):
    """The weights of one forward, summed over the blocks so far."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name, length)
        self.weights: Tensor | None = None  # [B, positions so far]

    def attend(self, block: BlockAttention) -> Tensor:
        scores, _ = block.newest_scores()
        self.add(mean_of_heads(scores.softmax(-1)))
        return block.fused()

    def add(self, weights: Tensor) -> None:
        """Add one block's weights [B, kv]."""
        weights = pad_keys(weights, self.length)
        self.weights = weights if self.weights is None else self.weights + weights.to(self.weights.device)

    def read(self) -> Tensor | None:
        return self.weights


class AttentionWatch:
    """Watches a model for the method `name`: `start` before a forward, `take` after it, `stop` if it may have failed."""

    def __init__(self, backbone: Backbone, name: str, reading: Callable[[str, int], WatchedPass] = SummedWeights) -> None:
        """`reading` makes the pass of a watched forward from the method's name and the number of positions so far."""
        self.name, self.reading = name, reading
        self.readings: list[WatchedPass] = []  # of the forward that is watched
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
        self.readings.clear()

    def take(self) -> Tensor:
        """What was read in the watched forward, [B, positions so far]."""
        found = self.readings[-1].read() if self.readings else None
        self.stop()
        if found is None:
            raise ModelError(f"this model's forward does not pass through its text decoder: {self.name} cannot watch it")
        return found

    def _begin(self, _kwargs: Call, length: int) -> WatchedPass:
        self.readings.append(self.reading(self.name, length))
        return self.readings[-1]
