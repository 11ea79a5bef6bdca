"""What methods in a decoder's attention share: the mask that they read, and the scores of the last query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from mgap.errors import ModelError


def whole_mask(*args: Any, **kwargs: Any) -> Tensor:
    """The mask that sdpa takes, also where sdpa could do without one: its last row is read."""
    mask: Tensor = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return mask


def last_scores(query: Tensor, key: Tensor, mask: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
    """Of one query a row, the last: scaled scores after the mask in float32 [B, heads, 1, kv], and the keys that it sees
    [B, 1, 1, kv]. Queries are [B, heads, T, d], keys [B, fewer heads, kv, d].
    """
    batch, heads, _, width = query.shape
    last, mask = query[:, :, -1].reshape(batch, key.shape[1], -1, width), mask[:, :, -1:]  # heads that share their keys
    scores = (last @ key.transpose(-1, -2)).reshape(batch, heads, 1, -1).float() * (scaling or width**-0.5)
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -torch.inf), mask
    return scores + mask, mask > torch.finfo(mask.dtype).min / 2


def refuse_odd_scores(name: str, module: Any, more: Mapping[str, Any]) -> None:
    """Decoders that change their scores in ways that `last_scores` does not follow."""
    if odd := [key for key in ("softcap", "s_aux", "position_bias") if more.get(key) is not None]:
        raise ModelError(f"{type(module).__name__} changes its scores by {odd[0]}, which {name} does not follow")
