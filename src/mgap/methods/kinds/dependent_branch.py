"""A second branch that depends on the main forward: it is built after it, where paired_forward.py builds the others before.

The branch reads the main rows' prompt, with the picture blank at positions that the method chooses from what the newest token
attends to. The prompt's main rows therefore run alone, and the branch's prompt in a forward of its own. From the next token on
the branch's rows stand behind the main ones, or stay aside (`branch_mode`). With `anew` the choice is made again after every
main forward, and the branch reads prompt and answer from the start each time: nothing of it is kept.
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
from mgap.errors import ModelError, UnsupportedDecoding
from mgap.methods.base import Tap
from mgap.methods.kinds.attention_weights import AttentionWatch
from mgap.methods.kinds.paired_forward import KINDS, ObservedCache, PairedCache, PairedForward, newest

if TYPE_CHECKING:
    from mgap.methods.kinds.branch import BranchMethod

Hide = Callable[[Tensor, Tensor], Tensor]  # attention and image positions, [B, T] each -> positions to blank, bool [B, T]


class DependentCache(ObservedCache):
    """The branch's rows are aside until they join, or for good. Also what they read, for as long as that is needed."""

    def __init__(self, config: Any, prompt: Call, images: Tensor, features: Any) -> None:
        super().__init__(config, prompt)
        self.images = images  # bool [B, prompt]
        self.features = features  # the main rows' pictures, as the language model reads them

    def join(self) -> None:
        """The branch's rows go behind the main ones."""
        (aside,) = self.aside
        for own, more in zip(self.layers, aside.layers, strict=True):
            if not isinstance(own, DynamicLayer) or not isinstance(more, DynamicLayer):
                raise ModelError(f"{type(own).__name__} does not take the branch's rows in: use branch_mode=sequential")
            own.keys, own.values = torch.cat([own.keys, more.keys]), torch.cat([own.values, more.values])
        self.rows, self.aside = [rows.twice() for rows in self.rows], []


class DependentBranch(PairedForward):
    """The hooks of one attached method, whose branch does not see what `hide` names."""

    def __init__(self, backbone: Backbone, method: BranchMethod, tap: Tap, hide: Hide, *, anew: bool) -> None:
        self.hide, self.is_anew = hide, anew
        self.may_overflow = backbone.model.dtype == torch.float16  # then every token is looked at, which waits for the GPU
        self.attention = AttentionWatch(backbone, method.name)
        super().__init__(backbone, method, tap)
        self.handles.append(backbone.model.register_forward_hook(self.settle, always_call=True))

    def remove(self) -> None:
        super().remove()
        self.attention.stop()

    def settle(self, *_: Any) -> None:
        """After every forward of the caller's, also one that failed."""
        if not self.is_idle:
            self.attention.stop()

    def _first(self, kwargs: Call) -> Call:
        if kwargs.get("output_attentions"):
            raise UnsupportedDecoding(f"{self.method.name} gives no attention weights back: leave output_attentions out")
        main, features = self._main(kwargs)
        with self._apart():
            (rows,) = (build(main) for build in self.builders)
        positions = self._positions(rows, [features])
        prompt: Call = {**{key: rows[key] for key in TOKEN_KEYS if key in rows}, "position_ids": positions}
        cache = DependentCache(self.backbone.config, prompt, self.backbone.image_mask(rows), features)
        self.attention.start()
        return {**kwargs, "past_key_values": cache}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        if not self.is_anew or not isinstance(cache, DependentCache):
            return super()._next(kwargs, cache)
        cache.hear({key: newest(kwargs[key]) for key in ("input_ids", *KINDS) if kwargs.get(key) is not None})
        self.attention.start()
        return kwargs

    def _each(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        main, (branch,) = self._both(model, logits, cache)
        if self.may_overflow:
            refuse_no_numbers(self.method.name, branch)
        return main, [branch]

    def _both(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        if not self.attention.is_on or not isinstance(cache, DependentCache) or not cache.aside:
            return super()._each(model, logits, cache)
        weights = self.attention.take()[:, : cache.images.shape[1]]  # to the prompt
        images = cache.images.to(weights.device)
        shown = blank(cache.features, self.hide(weights, images)[images])
        (prompt,), (aside,) = cache.waiting, cache.aside
        read = {**prompt, **self.showing.arguments(prompt["input_ids"], shown)}
        if (answer := cache.answer()) is not None:
            with self.row_split.paused():  # nothing is decoded from the end of the prompt any more
                self._run_aside(model, read, aside)
            read = answer
        branch = self._run_aside(model, read, aside)
        if self.is_anew:
            cache.aside = [DynamicCache(config=self.backbone.config)]
        elif not self.is_aside:
            cache.join()
        return logits, [branch]


def refuse_no_numbers(name: str, logits: Tensor) -> None:
    """Half precision overflows where a picture is blank; broken weights show at the first token."""
    if logits.isnan().any():
        raise ModelError(f"{name}: the branch's logits are no numbers; load the model in bfloat16 or float32")


def blank(features: Any, gone: Tensor) -> Any:
    """Encoded pictures with some of their tokens zero, at every depth where the language model reads them; bool [tokens]."""

    def zeroed(part: Any) -> Any:  # a tensor [..., d], or a list of them, one a picture
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
