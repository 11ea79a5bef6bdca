"""The one place that intercepts a text decoder's attention, for methods that change scores or read weights.

While an interceptor is on, the text decoder's configuration names our registered attention function. Every forward gets its own
`AttentionPass`, which every block calls instead of its kernel. By default a pass runs torch's fused attention; subclasses do
more. No class is patched, and afterwards the model's own kernel is restored.
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

REPLACED = ("eager", "sdpa")  # kernels that an interceptor may replace
OWN = "mgap_"  # prefix of the names of our attention functions
MASKED = "mgap_attention"  # our name in the text decoder's configuration: blocks always get a mask
CAUSAL = "mgap_attention_causal"  # the same, without a mask where torch's fused attention needs none
ARGUMENT = "mgap_attention_pass"  # carries a forward's pass from the text decoder to its blocks


@dataclass(frozen=True)
class BlockAttention:
    """One block's attention inputs, as transformers passes them."""

    module: Any
    query: Tensor  # [B, heads, T, d]
    key: Tensor  # [B, key heads, kv, d]; a sliding window keeps the newest keys only
    value: Tensor
    mask: Tensor | None  # [B, 1, T, kv], bool or added to the scores; None: causal, without padding
    more: Mapping[str, Any]

    @property
    def index(self) -> int:
        """The block's index, from 0."""
        return int(self.module.layer_idx)

    @property
    def scaling(self) -> float | None:
        return self.more.get("scaling")

    @property
    def required_mask(self) -> Tensor:
        """The mask, which `MASKED` always provides."""
        if self.mask is None:
            raise ModelError(f"{type(self.module).__name__} makes no mask for its attention: scores cannot be told apart")
        return self.mask

    def fused(self) -> Tensor:
        """Torch's fused attention, [B, T, heads, d]."""
        out: Tensor = ALL_ATTENTION_FUNCTIONS["sdpa"](self.module, self.query, self.key, self.value, self.mask, **self.more)[0]
        return out

    def scores_at(self, queries: slice | list[int]) -> tuple[Tensor, Tensor]:
        """Masked scores of some queries, float32 [B, heads, queries, kv], and the keys they see, [B, 1, queries, kv]."""
        mask = self.required_mask[:, :, queries]
        return scores_of(self.query[:, :, queries], self.key, mask, self.scaling), visible_keys(mask)

    def newest_scores(self) -> tuple[Tensor, Tensor]:
        """`scores_at` for every row's last query: [B, heads, 1, kv] and [B, 1, 1, kv]."""
        return self.scores_at(slice(-1, None))


class AttentionPass:
    """One forward of the text decoder; every block calls `attend`. Subclasses change it, or read what passes."""

    def __init__(self, name: str) -> None:
        self.name = name  # of the method, for error messages
        self.done: set[int] = set()  # the blocks that have called

    def attend(self, block: BlockAttention) -> Tensor:
        """The block's attention output, [B, T, heads, d]."""
        return block.fused()


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """The attention function that transformers calls for a decoder block, [B, heads, T, d]."""
    attention_pass: AttentionPass | None = more.pop(ARGUMENT, None)
    if attention_pass is None:
        raise ModelError(f"{type(module).__name__} does not hand arguments on to its attention: no method can act there")
    if odd := [key for key in ("softcap", "s_aux", "position_bias") if more.get(key) is not None]:
        raise ModelError(f"{type(module).__name__} changes its scores by {odd[0]}, which {attention_pass.name} does not follow")
    attention_pass.done.add(module.layer_idx)
    return attention_pass.attend(BlockAttention(module, query, key, value, attention_mask, more)), None


def full_mask(*args: Any, **kwargs: Any) -> Tensor:
    """The mask for sdpa, also where sdpa could do without one: we read single rows of it."""
    mask: Tensor = sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return mask


for _name, _mask in ((MASKED, full_mask), (CAUSAL, sdpa_mask)):
    AttentionInterface.register(_name, attend)
    AttentionMaskInterface.register(_name, _mask)


Begin = Callable[[Call, int], AttentionPass]  # the text decoder's arguments, positions so far (these included) -> its pass


class AttentionInterceptor:
    """Replaces the attention of one text decoder between `start` and `stop`; `begin` makes the pass of each forward.

    Raises if some of the `blocks` (None: all) did not call their pass.
    """

    def __init__(
        self, backbone: Backbone, name: str, begin: Begin, *, blocks: Collection[int] | None = None, kind: str = MASKED
    ) -> None:
        self.name, self.begin, self.kind, self.language = name, begin, kind, backbone.language
        self.config = backbone.config.get_text_config(decoder=True)
        self.blocks = set(range(len(backbone.layers)) if blocks is None else blocks)
        self.original = ""  # the model's own kernel, while ours replaces it
        self.handles: list[RemovableHandle] = []

    @property
    def is_on(self) -> bool:
        return bool(self.handles)

    def start(self) -> None:
        self.stop()
        self.original, self.config._attn_implementation = self.config._attn_implementation, self.kind
        self.handles = [
            self.language.register_forward_pre_hook(self._enter, with_kwargs=True),
            self.language.register_forward_hook(self._leave, with_kwargs=True),
        ]

    def stop(self) -> None:
        """Restore the model's own kernel. Calling it twice does no harm."""
        if self.is_on:
            self.config._attn_implementation = self.original
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
    """The mask as bool."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def scores_of(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Scaled, masked scores in float32 [B, heads, T, kv]. Queries are [B, heads, T, d], keys [B, fewer heads, kv, d]."""
    batch, heads, count, width = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, width)  # queries of heads that share keys are adjacent
    scores = (grouped @ key.transpose(-1, -2)).reshape(batch, heads, count, -1).float() * (scaling or width**-0.5)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def takes_bias(kernel: str) -> bool:
    """Whether a kernel adds a non-bool mask [B, 1, T, kv] to its scores."""
    return kernel in REPLACED or kernel.startswith(OWN)


def check_kernel(backbone: Backbone, name: str) -> None:
    """Refuse a text decoder whose attention cannot be replaced by torch's fused attention with a mask."""
    kernel: str = backbone.config.get_text_config(decoder=True)._attn_implementation
    if kernel not in REPLACED:
        ways = " or ".join(repr(way) for way in REPLACED)
        raise ModelError(
            f"{name} works on attention scores, which {kernel!r} does not show: load the model with attention={ways}"
        )
