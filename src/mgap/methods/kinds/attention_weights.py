"""Attention weights of every row's newest token, averaged over heads and summed over blocks.

Only watched forwards pay for it: they compute the last query's scores beside torch's fused attention. All other forwards keep
the model's own kernel, and no weights of the size of the prompt squared are computed.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import ModelError
from mgap.methods.kinds.attention_interceptor import AttentionInterceptor, AttentionPass, BlockAttention


def mean_of_heads(weights: Tensor) -> Tensor:
    """The last query's weights, averaged over heads: [..., heads, queries, kv] to [..., kv]."""
    return weights[..., -1, :].mean(-2)


class SummedWeights(AttentionPass):
    """The weights of one forward, summed over the blocks so far."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name)
        self.length = length
        self.weights: Tensor | None = None  # [B, positions so far]

    def attend(self, block: BlockAttention) -> Tensor:
        scores, _ = block.newest_scores()
        self.add(mean_of_heads(scores.softmax(-1)))
        return block.fused()

    def add(self, weights: Tensor) -> None:
        """Add one block's weights [B, kv]; a sliding window keeps the newest keys only, the others get 0."""
        weights = F.pad(weights, (self.length - weights.shape[1], 0))
        self.weights = weights if self.weights is None else self.weights + weights.to(self.weights.device)


class AttentionWatch:
    """Watches a model for the method `name`: `start` before a forward, `take` after it, `stop` if it may have failed."""

    def __init__(self, backbone: Backbone, name: str) -> None:
        self.name, self.sums = name, list[SummedWeights]()  # of the forward that is watched
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
        self.sums.clear()

    def take(self) -> Tensor:
        """The weights of the watched forward, [B, positions so far]."""
        weights = [one.weights for one in self.sums[-1:] if one.weights is not None]
        self.stop()
        if not weights:
            raise ModelError(f"this model's forward does not pass through its text decoder: {self.name} cannot watch it")
        return weights[0]

    def _begin(self, _kwargs: Call, length: int) -> SummedWeights:
        self.sums.append(SummedWeights(self.name, length))
        return self.sums[-1]
