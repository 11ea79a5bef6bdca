"""A KV cache at fixed addresses, and the attention of one new token to it, for captured steps.

In transformers' static cache every layer counts its own tokens. Here all layers share one write index and one mask, which the
caller advances, so that a layer only stores and attends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, StaticLayer

ATTENTION = "mgap_fixed_cache"  # the name under which transformers finds `attend`


class FixedCacheLayer(StaticLayer):
    """One layer's keys and values [rows, heads, length, d]; a token is written at `index` [1], which all layers share."""

    def __init__(self, keys: Tensor, values: Tensor, index: Tensor) -> None:
        super().__init__(max_cache_len=keys.shape[-2])
        self.keys, self.values, self.index = keys, values, index
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.index, key_states)
        self.values.index_copy_(2, self.index, value_states)
        return self.keys, self.values


class FixedCache(Cache):
    """A cache for `rows` rows of up to `length` tokens, with layers shaped like those of a filled one."""

    def __init__(self, like: DynamicCache, rows: int, length: int) -> None:
        device, dtype = like.layers[0].keys.device, like.layers[0].keys.dtype
        self.index = torch.zeros(1, dtype=torch.long, device=device)
        self.mask = torch.zeros(rows, 1, 1, length, dtype=dtype, device=device)  # 0 at tokens, the dtype's minimum elsewhere

        def empty(filled: Tensor) -> Tensor:  # [B, heads, T, d]
            return filled.new_zeros(rows, filled.shape[1], length, filled.shape[3])

        super().__init__(layers=[FixedCacheLayer(empty(layer.keys), empty(layer.values), self.index) for layer in like.layers])

    def fill(self, prompt: DynamicCache, attention_mask: Tensor, times: int) -> None:
        """Copy the prompt's keys and values, each row `times` times, and free the prompt's layer by layer."""
        filled = attention_mask.repeat_interleave(times, 0).bool()  # [B * times, T]
        rows, length = filled.shape
        for layer, source in zip(self.layers, prompt.layers, strict=True):
            layer.keys[:rows, :, :length] = source.keys.repeat_interleave(times, 0) if times > 1 else source.keys
            layer.values[:rows, :, :length] = source.values.repeat_interleave(times, 0) if times > 1 else source.values
            source.keys = source.values = None
        self.mask.fill_(torch.finfo(self.mask.dtype).min)
        self.mask[rows:, ..., 0] = 0  # unused rows must attend to something
        self.mask[:rows, 0, 0, :length].masked_fill_(filled, 0)
        self.index.fill_(length)


def attend(
    module: nn.Module,  # noqa: ARG001
    query: Tensor,  # [B, heads, 1, d]
    key: Tensor,  # [B, key-value heads, length, d]
    value: Tensor,
    attention_mask: Tensor,  # [B, 1, 1, length], added to the scores
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of one token: query heads that share keys become rows of one product, so that no key is copied.

    For several rows with one query head per key head, torch's kernel is faster; otherwise two products that the compiler fuses
    with the code around them.
    """
    rows, heads, width = len(query), query.shape[1], query.shape[-1]
    grouped = query.reshape(rows, key.shape[1], -1, width)  # [B, key-value heads, heads each, d]
    if rows > 1 and grouped.shape[2] == 1:
        out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    else:
        scores = (grouped @ key.transpose(-1, -2)).float() * (width**-0.5 if scaling is None else scaling)
        out = (scores + attention_mask).softmax(-1).to(value.dtype) @ value
    return out.reshape(rows, 1, heads, width), None


AttentionInterface.register(ATTENTION, attend)


@contextmanager
def fixed_attention(config: Any) -> Iterator[None]:
    """Inside the block, models with this configuration use `attend`."""
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
