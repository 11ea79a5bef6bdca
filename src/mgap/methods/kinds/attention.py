"""What methods in a decoder's attention share: the mask that they read, scores, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from mgap.backbones.base import Backbone
from mgap.errors import ModelError

REPLACED = ("eager", "sdpa")  # kernels that a function of ours may stand in for
OWN = "mgap_"  # how the names of these functions begin


def whole_mask(*args: Any, **kwargs: Any) -> Tensor:
    """The mask that sdpa takes, also where sdpa could do without one: its last row is read."""
    mask: Tensor = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return mask


def scores_of(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Scaled scores after the mask in float32 [B, heads, T, kv]. Queries are [B, heads, T, d], keys [B, fewer heads, kv, d]."""
    batch, heads, count, width = query.shape
    shared = query.reshape(batch, key.shape[1], -1, width)  # the queries of heads that share their keys, one after the other
    scores = (shared @ key.transpose(-1, -2)).reshape(batch, heads, count, -1).float() * (scaling or width**-0.5)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def last_scores(query: Tensor, key: Tensor, mask: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
    """The same of one query a row, the last: [B, heads, 1, kv], and the keys that it sees [B, 1, 1, kv]."""
    mask = mask[:, :, -1:]
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return scores_of(query[:, :, -1:], key, mask, scaling), seen


def takes_bias(kernel: str) -> bool:
    """Whether a kernel adds what it is given as a mask [B, 1, T, kv] to its scores, where that is no bool."""
    return kernel in REPLACED or kernel.startswith(OWN)


def check_kernel(backbone: Backbone, name: str) -> str:
    """The text decoder's attention, if it is one that torch's fused attention with a mask can stand in for."""
    kernel: str = backbone.config.get_text_config(decoder=True)._attn_implementation
    if kernel not in REPLACED:
        ways = " or ".join(repr(way) for way in REPLACED)
        raise ModelError(
            f"{name} works on attention scores, which {kernel!r} does not show: load the model with attention={ways}"
        )
    return kernel


def refuse_odd_scores(name: str, module: Any, more: Mapping[str, Any]) -> None:
    """Decoders that change their scores in ways that `last_scores` does not follow."""
    if odd := [key for key in ("softcap", "s_aux", "position_bias") if more.get(key) is not None]:
        raise ModelError(f"{type(module).__name__} changes its scores by {odd[0]}, which {name} does not follow")
