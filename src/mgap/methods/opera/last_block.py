"""What the newest tokens look at in the decoder's last block, read beside the model's own attention.

A registered attention function stands in the text decoder's configuration while a method is on. Every block goes through
torch's fused attention as before. In the last one the weights of the queries that were asked for are computed as well, the
largest over the heads. The same function keeps candidates apart: alternatives for the next token are queries of one forward
that see what came before and themselves, not each other, so that they need neither rows nor caches of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mgap.errors import ModelError
from mgap.methods.kinds.attention import refuse_odd_scores, scores_of
from mgap.methods.opera.overtrust import normalise

IMPLEMENTATION = "mgap_gaze"  # as the text decoder's configuration names it while a method reads weights
ARGUMENT = "mgap_gaze"  # carries what is wanted from a forward's arguments to the attention


@dataclass
class LastBlockWeights:
    """What one forward is to do, and what it saw."""

    block: int | None = None  # whose weights are read; None: nobody's
    apart: bool = False  # the queries are candidates for one place
    weights: Tensor | None = None  # [rows, queries, keys], each sums to 1
    masks: dict[int, Tensor] = field(default_factory=dict)  # that keep candidates apart, by the number of keys

    def read(self, name: str) -> Tensor:
        """The weights, once the forward is over."""
        if self.weights is None:
            raise ModelError(f"{name} read no attention weights: the model's last block has attention of its own")
        return self.weights


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention of a decoder block [B, heads, T, d] as transformers calls it: torch's own, watched in the last block."""
    gaze: LastBlockWeights | None = more.pop(ARGUMENT, None)
    if gaze is None:
        raise ModelError(f"{type(module).__name__} does not hand arguments on to its attention: its weights cannot be read")
    refuse_odd_scores("reading its weights", module, more)
    if gaze.apart:
        attention_mask = _keep_apart(gaze, attention_mask, query, key)
    if module.layer_idx == gaze.block:
        gaze.weights = look(query, key, attention_mask, more.get("scaling"))
    out: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **more)
    return out


def look(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Weights [B, queries, kv] of a step's queries, the largest over the heads and brought to a sum of 1."""
    return normalise(scores_of(query, key, mask, scaling).softmax(-1).max(1).values)


def _keep_apart(gaze: LastBlockWeights, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Every candidate sees what the first one sees, and itself: [B, 1, queries, kv]."""
    count, length = query.shape[2], key.shape[2]
    if count == 1:
        return mask
    if length not in gaze.masks:  # blocks share their masks
        past = torch.ones(len(query), 1, 1, length, dtype=torch.bool, device=query.device) if mask is None else mask[:, :, :1]
        past = past if past.dtype == torch.bool else past > torch.finfo(past.dtype).min / 2
        itself = torch.eye(count, dtype=torch.bool, device=query.device).expand(*past.shape[:2], -1, -1)
        gaze.masks[length] = torch.cat([past[..., :-count].expand(-1, -1, count, -1), itself], dim=-1)
    return gaze.masks[length]


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
