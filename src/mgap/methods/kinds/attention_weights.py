"""Where the newest token of every row looks: its attention, head by head averaged and summed over the blocks.

Only the forwards that are watched pay for it. For their length the text decoder's configuration names a registered attention
function: torch's fused attention, and beside it the scores of the last query. All other forwards keep the model's own kernel,
whatever it is, and no weights of the size of the prompt squared are made.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import ModelError
from mgap.methods.kinds.attention import last_scores, refuse_odd_scores, whole_mask

IMPLEMENTATION = "mgap_glance"  # as the text decoder's configuration names it in a forward that is watched
_ARGUMENT = "mgap_sight"  # carries what is seen from the decoder's attention to its door


def mean_of_heads(weights: Tensor) -> Tensor:
    """Of the last query: [..., heads, queries, kv] to [..., kv]."""
    return weights[..., -1, :].mean(-2)


class SeenWeights:
    """What one forward has seen so far."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length, self.blocks = name, length, set[int]()
        self.weights: Tensor | None = None  # [B, positions so far]

    def add(self, block: int, weights: Tensor) -> None:
        """One block's [B, kv]; a sliding window keeps the newest keys only, the others get nothing."""
        weights = F.pad(weights, (self.length - weights.shape[1], 0))
        self.weights = weights if self.weights is None else self.weights + weights.to(self.weights.device)
        self.blocks.add(block)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **more: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention of a decoder block [B, heads, T, d] as transformers calls it: torch's own, with a look at the last row."""
    sight: SeenWeights | None = more.pop(_ARGUMENT, None)
    if sight is None:
        raise ModelError(f"{type(module).__name__} does not hand arguments on to its attention: it cannot be watched")
    refuse_odd_scores(sight.name, module, more)
    scores, _ = last_scores(query, key, attention_mask, more.get("scaling"))
    sight.add(module.layer_idx, mean_of_heads(scores.softmax(-1)))
    plain: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **more)
    return plain


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, whole_mask)


class AttentionWatch:
    """Watches a model for the method `name`: `watch` before a forward, `take` after it; `rest` where it may have failed."""

    def __init__(self, backbone: Backbone, name: str) -> None:
        self.name, self.language, self.blocks = name, backbone.language, set(range(len(backbone.layers)))
        self.config = backbone.config.get_text_config(decoder=True)
        self.usual = ""  # the model's own kernel, while it is watched
        self.sight: SeenWeights | None = None
        self.handles: list[RemovableHandle] = []

    @property
    def is_watching(self) -> bool:
        return bool(self.handles)

    def watch(self) -> None:
        self.rest()
        self.usual, self.config._attn_implementation = self.config._attn_implementation, IMPLEMENTATION
        self.handles = [
            self.language.register_forward_pre_hook(self.enter, with_kwargs=True),
            self.language.register_forward_hook(self.leave),
        ]

    def rest(self) -> None:
        """The model has its own kernel again; what was seen is forgotten."""
        if self.is_watching:
            self.config._attn_implementation = self.usual
        for handle in self.handles:
            handle.remove()
        self.handles, self.sight = [], None

    def take(self) -> Tensor:
        """What the watched forward saw, [B, positions so far]."""
        sight = self.sight
        self.rest()
        if sight is None or sight.weights is None:
            raise ModelError(f"this model's forward does not pass through its text decoder: {self.name} cannot watch it")
        return sight.weights

    def enter(self, _language: nn.Module, args: tuple[Any, ...], kwargs: Call) -> tuple[tuple[Any, ...], Call]:
        cache = kwargs.get("past_key_values")
        self.sight = SeenWeights(self.name, (cache.get_seq_length() if cache else 0) + kwargs["inputs_embeds"].shape[1])
        return args, {**kwargs, _ARGUMENT: self.sight}

    def leave(self, language: nn.Module, _args: Any, _output: Any) -> None:
        if self.sight is None or self.sight.blocks != self.blocks:
            kind = type(language).__name__
            raise ModelError(f"{kind} has attention of its own in some blocks: {self.name} cannot watch this model")
