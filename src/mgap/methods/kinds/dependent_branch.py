"""A second branch that depends on the main forward, and is therefore built after it; paired_forward.py builds others before.

What the newest token attends to decides what the branch sees. So the prompt's main rows run alone, and the branch's prompt runs
in a separate forward. From the next token on the branch's rows follow the main ones, or stay separate (`branch_mode`).

`MaskedBranch` reads the main rows' prompt, with the picture zeroed at positions that the method chooses. With `every_step` the
method chooses again after every main forward, and the branch reads prompt and answer from the start each time; its cache is not
kept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call, flatten
from mgap.backbones.token_rows import TOKEN_KEYS
from mgap.errors import ModelError, NonFiniteScores
from mgap.methods.base import Tap
from mgap.methods.kinds.attention_weights import AttentionWatch
from mgap.methods.kinds.decode_positions import DecodePositions
from mgap.methods.kinds.paired_forward import TYPE_KEYS, Inputs, ObservedCache, PairedCache, RowState, newest
from mgap.methods.kinds.watched_forward import WatchedForward

if TYPE_CHECKING:
    from mgap.methods.kinds.branch import BranchMethod

# attention [blocks, B, T], image positions [B, T] -> positions to zero, bool [B, T], and numbers [B] to keep for the answer
Hide = Callable[[Tensor, Tensor], tuple[Tensor, RowState]]


class DependentCache(ObservedCache):
    """The branch's rows stay separate until they join, or for good. Also holds what the branch is built from."""

    def __init__(self, config: Any, prompt: Call, main: Inputs, features: Any) -> None:
        super().__init__(config, prompt)
        self.main = main  # the main rows' prompt and pixels
        self.features = features  # their encoded pictures

    def follow(self, prompt: Call, *, is_separate: bool) -> None:
        """The branch has read its prompt: from now on its rows follow the main ones, unless it stays separate."""
        branch = DecodePositions(prompt["attention_mask"], prompt["position_ids"])
        if is_separate:
            self.rows = [branch]
            return
        (cache,), (main,) = self.branch_caches, self.rows
        for own, more in zip(self.layers, cache.layers, strict=True):
            if not isinstance(own, DynamicLayer) or not isinstance(more, DynamicLayer):
                raise ModelError(f"{type(own).__name__} does not take the branch's rows in: use branch_mode=sequential")
            own.keys, own.values = _stack(own.keys, more.keys), _stack(own.values, more.values)
        self.rows, self.branch_caches = [main.joined(branch)], []


class DependentBranch(WatchedForward):
    """The hooks of one attached method whose branch depends on what the main rows attend to."""

    def __init__(
        self, backbone: Backbone, method: BranchMethod, tap: Tap, attention: AttentionWatch, *, every_step: bool = False
    ) -> None:
        self.every_step = every_step
        super().__init__(backbone, method, tap, attention)

    @abstractmethod
    def build_prompt(self, attention: Tensor, cache: DependentCache) -> tuple[Call, Any]:
        """After a watched forward: the branch's prompt with its positions, and the encoded pictures that it shows.

        `attention` is what the watch has read of it.
        """

    def _first(self, kwargs: Call) -> Call:
        main, features = self._main(kwargs)
        with self._plain_model():
            (rows,) = self.build(main)
        cache = DependentCache(self.backbone.config, self._prompt(rows, features), main, features)
        self.attention.start()
        return {**kwargs, "past_key_values": cache}

    def _prompt(self, rows: Inputs, features: Any) -> Call:
        """The tokens and positions of rows that show these pictures."""
        tokens = {key: rows[key] for key in TOKEN_KEYS if key in rows}
        return {**tokens, "position_ids": self._positions(rows, [(rows, features)])}

    def _next(self, kwargs: Call, cache: PairedCache) -> Call:
        if not self.every_step or not isinstance(cache, DependentCache):
            return super()._next(kwargs, cache)
        cache.append({key: newest(kwargs[key]) for key in ("input_ids", *TYPE_KEYS) if kwargs.get(key) is not None})
        self.attention.start()
        return kwargs

    def _split_logits(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        if not self.attention.is_on or not isinstance(cache, DependentCache):
            return super()._split_logits(model, logits, cache)
        prompt, shown = self.build_prompt(self.attention.take(), cache)
        (branch_cache,) = cache.branch_caches
        call = {**prompt, **self.embedder.arguments(prompt["input_ids"], shown)}
        if (answer := cache.answer_after()) is not None:
            with self.row_split.paused():  # the end of the prompt is no longer decoded from
                self._run_branch(model, call, branch_cache)
            call = answer
        branch = self._run_branch(model, call, branch_cache)
        if self.every_step:
            cache.branch_caches = [DynamicCache(config=self.backbone.config)]
        else:
            cache.follow(prompt, is_separate=self.is_separate)
        return logits, [branch]


class MaskedBranch(DependentBranch):
    """The hooks of one attached method whose branch does not see the image tokens that `hide` selects."""

    def __init__(self, backbone: Backbone, method: BranchMethod, tap: Tap, hide: Hide, *, every_step: bool) -> None:
        self.hide = hide
        self.may_overflow = backbone.model.dtype == torch.float16  # then every token is checked, which waits for the GPU
        super().__init__(backbone, method, tap, AttentionWatch(backbone, method.name), every_step=every_step)

    def build_prompt(self, attention: Tensor, cache: DependentCache) -> tuple[Call, Any]:
        images = self.backbone.image_mask(cache.main).to(attention.device)
        hidden, numbers = self.hide(attention[..., : images.shape[1]], images)
        cache.row_state.update(numbers)
        (prompt,) = cache.branch_inputs
        return prompt, blank(cache.features, hidden[images])

    def _split_logits(self, model: nn.Module, logits: Tensor, cache: PairedCache) -> tuple[Tensor, list[Tensor]]:
        main, (branch,) = super()._split_logits(model, logits, cache)
        if self.may_overflow:
            refuse_nan(self.method.name, branch)
        return main, [branch]


def _stack(main: Tensor, branch: Tensor) -> Tensor:
    """Keys or values [rows, heads, T, d] of all rows, left padded to one length."""
    length = max(main.shape[-2], branch.shape[-2])
    return torch.cat([F.pad(part, (0, 0, length - part.shape[-2], 0)) for part in (main, branch)])


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
