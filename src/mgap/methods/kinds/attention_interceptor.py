"""The one place where a text decoder's attention is intercepted, for methods that change scores or read weights.

While an interceptor is on, the text decoder's configuration names a registered attention function. Every forward gets an
`AttentionPass` of its own, which every block calls in place of its kernel. By default that is torch's fused attention; a pass
says what it does besides. No class is patched, and the model's own kernel comes back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import ModelError

REPLACED = ("eager", "sdpa")  # kernels that an interceptor may stand in for
OWN = "mgap_"  # how the names of our attention functions begin
MASKED = "mgap_attention"  # as the text decoder's configuration names ours: blocks always get a mask
CAUSAL = "mgap_attention_causal"  # the same, without a mask where torch's fused attention needs none
ARGUMENT = "mgap_attention_pass"  # carries a forward's pass from the text decoder to its blocks


@dataclass(frozen=True)
class BlockAttention:
    """What one block attends with, as transformers gives it."""

    module: Any
    query: Tensor  # [B, heads, T, d]
    key: Tensor  # [B, key heads, kv, d]; a sliding window keeps the newest keys only
    value: Tensor
    mask: Tensor | None  # [B, 1, T, kv], bool or added to the scores; None: causal, nothing is padded
    more: Mapping[str, Any]

    @property
    def index(self) -> int:
        """Which block it is, from 0."""
        return int(self.module.layer_idx)

    @property
    def scaling(self) -> float | None:
        return self.more.get("scaling")

    @property
    def whole_mask(self) -> Tensor:
        """The mask, which a pass of `MASKED` always gets."""
        if self.mask is None:
            raise ModelError(f"{type(self.module).__name__} makes no mask for its attention: scores cannot be told apart")
        return self.mask

    def fused(self) -> Tensor:
        """Torch's fused attention, [B, T, heads, d]."""
        out: Tensor = ALL_ATTENTION_FUNCTIONS["sdpa"](self.module, self.query, self.key, self.value, self.mask, **self.more)[0]
        return out

    def scores_at(self, queries: slice | list[int]) -> tuple[Tensor, Tensor]:
        """Scores of some queries after the mask, float32 [B, heads, queries, kv], and the keys they see [B, 1, queries, kv]."""
        mask = self.whole_mask[:, :, queries]
        return scores_of(self.query[:, :, queries], self.key, mask, self.scaling), visible_keys(mask)

    def newest_scores(self) -> tuple[Tensor, Tensor]:
        """The same of the last query of every row: [B, heads, 1, kv] and [B, 1, 1, kv]."""
        return self.scores_at(slice(-1, None))


class AttentionPass:
    """One forward of the text decoder; every block calls `attend`. Subclasses change it, or look at what passes."""

    def __init__(self, name: str) -> None:
        self.name = name  # of the method, for refusals
        self.done: set[int] = set()  # the blocks that have called

    def attend(self, block: BlockAttention) -> Tensor:
        """What the block attends to, [B, T, heads, d]."""
        return block.fused()


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Attention of a decoder block [B, heads, T, d] as transformers calls it."""
    forward: AttentionPass | None = more.pop(ARGUMENT, None)
    if forward is None:
        raise ModelError(f"{type(module).__name__} does not hand arguments on to its attention: no method can act there")
    if odd := [key for key in ("softcap", "s_aux", "position_bias") if more.get(key) is not None]:
        raise ModelError(f"{type(module).__name__} changes its scores by {odd[0]}, which {forward.name} does not follow")
    forward.done.add(module.layer_idx)
    return forward.attend(BlockAttention(module, query, key, value, attention_mask, more)), None


def whole_mask(*args: Any, **kwargs: Any) -> Tensor:
    """The mask that sdpa takes, also where sdpa could do without one: single rows of it are read."""
    mask: Tensor = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return mask


for _name, _mask in ((MASKED, whole_mask), (CAUSAL, sdpa_mask)):
    AttentionInterface.register(_name, attend)
    AttentionMaskInterface.register(_name, _mask)


Begin = Callable[[Call, int], AttentionPass]  # of the text decoder's arguments and the positions so far, these included


class AttentionInterceptor:
    """Stands in for the attention of one text decoder between `start` and `stop`; `begin` makes the pass of each forward.

    Refuses a decoder in which some of the `blocks` (None: all) did not call their pass.
    """

    def __init__(
        self, backbone: Backbone, name: str, begin: Begin, *, blocks: Collection[int] | None = None, kind: str = MASKED
    ) -> None:
        self.name, self.begin, self.kind, self.language = name, begin, kind, backbone.language
        self.config = backbone.config.get_text_config(decoder=True)
        self.blocks = set(range(len(backbone.layers)) if blocks is None else blocks)
        self.usual = ""  # the model's own kernel, while ours stands in for it
        self.handles: list[RemovableHandle] = []

    @property
    def is_on(self) -> bool:
        return bool(self.handles)

    def start(self) -> None:
        self.stop()
        self.usual, self.config._attn_implementation = self.config._attn_implementation, self.kind
        self.handles = [
            self.language.register_forward_pre_hook(self._enter, with_kwargs=True),
            self.language.register_forward_hook(self._leave, with_kwargs=True),
        ]

    def stop(self) -> None:
        """The model has its own kernel again. Doing it twice does no harm."""
        if self.is_on:
            self.config._attn_implementation = self.usual
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _enter(self, _language: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        cache = kwargs.get("past_key_values")
        length = (0 if cache is None else cache.get_seq_length()) + kwargs["inputs_embeds"].shape[1]
        return args, {**kwargs, ARGUMENT: self.begin(kwargs, length)}

    def _leave(self, language: nn.Module, _args: tuple[Any, ...], kwargs: Call, _output: Any) -> None:
        if not self.blocks <= kwargs[ARGUMENT].done:
            kind = type(language).__name__
            raise ModelError(f"{kind} has attention of its own in some blocks: {self.name} cannot act in this model")


def visible_keys(mask: Tensor) -> Tensor:
    """The same mask as a bool."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def scores_of(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Scaled scores after the mask in float32 [B, heads, T, kv]. Queries are [B, heads, T, d], keys [B, fewer heads, kv, d]."""
    batch, heads, count, width = query.shape
    shared = query.reshape(batch, key.shape[1], -1, width)  # the queries of heads that share their keys, one after the other
    scores = (shared @ key.transpose(-1, -2)).reshape(batch, heads, count, -1).float() * (scaling or width**-0.5)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def takes_bias(kernel: str) -> bool:
    """Whether a kernel adds what it is given as a mask [B, 1, T, kv] to its scores, where that is no bool."""
    return kernel in REPLACED or kernel.startswith(OWN)


def check_kernel(backbone: Backbone, name: str) -> None:
    """Refuse a text decoder whose attention is none that torch's fused attention with a mask can stand in for."""
    kernel: str = backbone.config.get_text_config(decoder=True)._attn_implementation
    if kernel not in REPLACED:
        ways = " or ".join(repr(way) for way in REPLACED)
        raise ModelError(
            f"{name} works on attention scores, which {kernel!r} does not show: load the model with attention={ways}"
        )
