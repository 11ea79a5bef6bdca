"""A second branch that depends on the main forward, and is therefore built after it; paired_forward.py builds others before.

The branch reads the main rows' prompt, with the picture zeroed at positions that the method chooses from the newest token's
attention. So the prompt's main rows run alone, and the branch's prompt runs in a separate forward. From the next token on the
branch's rows follow the main ones, or stay separate (`branch_mode`). With `every_step` the method chooses again after every
main forward, and the branch reads prompt and answer from the start each time; its cache is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call, flatten
from mgap.backbones.token_rows import TOKEN_KEYS
from mgap.errors import ModelError, NonFiniteScores, UnsupportedDecoding
from mgap.methods.base import Tap
from mgap.methods.kinds.attention_weights import AttentionWatch
from mgap.methods.kinds.paired_forward import TYPE_KEYS, ObservedCache, PairedCache, PairedForward, newest

if TYPE_CHECKING:
    from mgap.methods.kinds.branch import BranchMethod

Hide = Callable[[Tensor, Tensor], Tensor]  # attention and image positions, [B, T] each -> positions to zero, bool [B, T]


class DependentCache(ObservedCache):
    """The branch's rows stay separate until they join, or for good. Also holds the branch's inputs while they are needed."""

    def __init__(self, config: Any, prompt: Call, images: Tensor, features: Any) -> None:
        super().__init__(config, prompt)
        self.images = images  # bool [B, prompt]
        self.features = features  # the main rows' encoded pictures

    def join(self) -> None:
        """Append the branch's rows to the main ones."""
        (branch,) = self.branch_caches
        for own, more in zip(self.layers, branch.layers, strict=True):
            if not isinstance(own, DynamicLayer) or not isinstance(more, DynamicLayer):
                raise ModelError(f"{type(own).__name__} does not take the branch's rows in: use branch_mode=sequential")
            own.keys, own.values = torch.cat([own.keys, more.keys]), torch.cat([own.values, more.values])
        self.rows, self.branch_caches = [rows.doubled() for rows in self.rows], []


class DependentBranch(PairedForward):
    """The hooks of one attached method whose branch does not see the image tokens that `hide` selects."""

    def __init__(self, backbone: Backbone, method: BranchMethod, tap: Tap, hide: Hide, *, every_step: bool) -> None:
        self.hide, self.every_step = hide, every_step
        self.may_overflow = backbone.model.dtype == torch.float16  # then every token is checked, which waits for the GPU
        self.attention = AttentionWatch(backbone, method.name)
        super().__init__(backbone, method, tap)
        self.handles.append(backbone.model.register_forward_hook(self.stop_watching, always_call=True))

    def remove(self) -> None:
        super().remove()
        self.attention.stop()

    def stop_watching(self, *_: Any) -> None:
        """After every forward of the caller, also a failed one."""
        if not self.is_idle:
            self.attention.stop()

    def _first(self, kwargs: Call) -> Call:
        if kwargs.get("output_attentions"):
            raise UnsupportedDecoding(f"{self.method.name} gives no attention weights back: leave output_attentions out")
        main, features = self._main(kwargs)
        with self._plain_model():
            (rows,) = self.build(main)
        positions = self._positions(rows, [(rows, features)])
        prompt: Call = {**{key: rows[key] for key in TOKEN_KEYS if key in rows}, "position_ids": positions}
        cache = DependentCache(self.backbone.config, prompt, self.backbone.image_mask(rows), features)
        self.attention.start()
        return {**kwargs, "past_key_values": cache}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        if not self.every_step or not isinstance(cache, DependentCache):
            return super()._next(kwargs, cache)
        cache.append({key: newest(kwargs[key]) for key in ("input_ids", *TYPE_KEYS) if kwargs.get(key) is not None})
        self.attention.start()
        return kwargs

    def _split_logits(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        main, (branch,) = self._both_logits(model, logits, cache)
        if self.may_overflow:
            refuse_nan(self.method.name, branch)
        return main, [branch]

    def _both_logits(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        if not self.attention.is_on or not isinstance(cache, DependentCache) or not cache.branch_caches:
            return super()._split_logits(model, logits, cache)
        weights = self.attention.take()[:, : cache.images.shape[1]]  # on the prompt
        images = cache.images.to(weights.device)
        shown = blank(cache.features, self.hide(weights, images)[images])
        (prompt,), (branch_cache,) = cache.branch_inputs, cache.branch_caches
        call = {**prompt, **self.embedder.arguments(prompt["input_ids"], shown)}
        if (answer := cache.answer_after()) is not None:
            with self.row_split.paused():  # the end of the prompt is no longer decoded from
                self._run_branch(model, call, branch_cache)
            call = answer
        branch = self._run_branch(model, call, branch_cache)
        if self.every_step:
            cache.branch_caches = [DynamicCache(config=self.backbone.config)]
        elif not self.is_separate:
            cache.join()
        return logits, [branch]


def refuse_nan(name: str, logits: Tensor) -> None:
    """Refuse NaN logits: half precision can overflow on a zeroed picture; broken weights show at the first token."""
    if logits.isnan().any():
        raise NonFiniteScores(
            f"{name}: at token 1 of the answer its branch's scores are NaN; load the model in bfloat16 or float32"
        )


def blank(features: Any, gone: Tensor) -> Any:
    """Zero the tokens `gone`, bool [tokens], of encoded pictures, at every depth that the language model reads."""

    def zeroed(part: Any) -> Any:  # a tensor [..., d], or a list with one per picture
        flat = flatten(part)
        if len(flat) != len(gone):
            raise ModelError(
                f"{len(flat)} encoded tokens for {len(gone)} placeholders: pictures of this model cannot be masked"
            )
        flat = flat.masked_fill(gone.to(flat.device).unsqueeze(-1), 0)
        return flat.view_as(part) if isinstance(part, Tensor) else list(flat.split([len(picture) for picture in part]))

    blanked = copy(features)
    blanked.pooler_output = zeroed(features.pooler_output)
    if getattr(features, "deepstack_features", None) is not None:
        blanked.deepstack_features = [zeroed(level) for level in features.deepstack_features]
    return blanked
