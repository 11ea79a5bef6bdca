"""Methods that act in the text decoder's attention: they change the scores of each row's newest query, or read them.

A method implements one function of a block's scores (`edit_scores`). The prompt goes through torch's fused attention; for its
last row and every new token we compute the scores ourselves. Refused: kernels that expose no scores, static and compiled
decoding, drafts, decoders with unusual scores, and decoders that the edit does not reach.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import Cache

from mgap.backbones.base import Backbone
from mgap.backbones.image_embeddings import Call
from mgap.errors import PromptError, UnsupportedDecoding
from mgap.methods.base import Handles, Method, Observation, Removable, Seam, Tap
from mgap.methods.kinds.attention_interceptor import MASKED, AttentionInterceptor, AttentionPass, BlockAttention, check_kernel
from mgap.methods.kinds.generation_start import starts_generation
from mgap.methods.kinds.main_rows import row_split_of
from mgap.types import ALL_MODES, Mode


@dataclass(frozen=True)
class Keys:
    """The keys that one block's scores belong to."""

    block: int  # from 0
    images: Tensor  # bool [B, kv]: keys of the picture
    visible: Tensor  # bool [B, kv]: keys that the newest query sees; the others have -inf or very low scores


Edit = Callable[[Tensor, Keys], Tensor]  # scores [B, heads, 1, kv] -> edited scores


class EditedAttention(AttentionPass):
    """One forward in which every row's newest query attends with edited scores, in some blocks."""

    def __init__(self, name: str, blocks: range, images: Tensor, edit: Edit) -> None:
        super().__init__(name)
        self.blocks, self.edit = blocks, edit
        self.images = images  # bool [B, positions so far]: the picture's positions

    def attend(self, block: BlockAttention) -> Tensor:
        if block.index not in self.blocks:
            return block.fused()
        if block.query.shape[2] == 1:
            return self.attend_newest(block)
        last = self.attend_last(block)
        return torch.cat([block.fused()[:, :-1], last], dim=1)

    def attend_last(self, block: BlockAttention) -> Tensor:
        """Attention of every row's last query, with the edit: [B, 1, heads, d]."""
        scores, visible = block.newest_scores()
        keys = Keys(block.index, self.image_keys(block.key), visible[:, 0, 0])
        value = block.value.repeat_interleave(block.query.shape[1] // block.value.shape[1], 1)
        return (self.edit(scores, keys).softmax(-1).to(value.dtype) @ value).transpose(1, 2).contiguous()

    def attend_newest(self, block: BlockAttention) -> Tensor:
        """`attend_last` for rows with a single query."""
        return self.attend_last(block)

    def image_keys(self, key: Tensor) -> Tensor:
        """bool [B, kv]; a sliding window keeps the newest keys only."""
        return self.images[:, -key.shape[2] :].to(key.device)


class AttentionEdit:
    """An edit on one model. The picture's keys are found in the prompt and stored per generation cache."""

    def __init__(
        self,
        backbone: Backbone,
        name: str,
        make: Callable[[Tensor], AttentionPass],
        blocks: range,
        *,
        needs_picture: bool,
        kind: str = MASKED,
    ) -> None:
        """`make` builds the pass of a forward from the image keys, bool [B, positions so far]."""
        check_kernel(backbone, name)
        self.backbone, self.name, self.make, self.needs_picture = backbone, name, make, needs_picture
        self.images: WeakKeyDictionary[Cache, Tensor] = WeakKeyDictionary()  # of the prompt; a row's beams share its picture
        self.interceptor = AttentionInterceptor(backbone, name, self._begin, blocks=blocks, kind=kind)
        self.handle: RemovableHandle = backbone.model.register_forward_pre_hook(self.read, with_kwargs=True)
        self.interceptor.start()

    def remove(self) -> None:
        self.interceptor.stop()
        self.handle.remove()

    def read(self, _model: nn.Module, args: tuple[Any, ...], kwargs: Call) -> None:
        """Find the picture in a prompt; refuse a forward in which the newest position is not the last column."""
        name = self.name
        if kwargs.get("output_attentions"):
            raise UnsupportedDecoding(f"{name} gives no attention weights back: leave output_attentions out")
        if not starts_generation(name, args, kwargs, self.images):
            return
        images = self.backbone.image_mask(kwargs)
        if self.needs_picture and not images.any():
            raise PromptError(f"{name} acts on the attention to a picture: give one, or leave {name} off")
        self.images[kwargs["past_key_values"]] = images

    def _begin(self, kwargs: Call, length: int) -> AttentionPass:
        images = self.images[kwargs["past_key_values"]]
        return self.make(F.pad(images, (0, length - images.shape[1])))  # the answer contains no picture


@dataclass(frozen=True)
class AttentionMethod(Method):
    """Cost: 1 forward per token. All decoding modes except assisted, static and compiled; the kernels "eager" and "sdpa"."""

    seam: ClassVar[Seam] = Seam.ATTENTION
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES - {Mode.ASSISTED, Mode.STATIC, Mode.COMPILE}
    needs_picture: ClassVar[bool] = True

    @abstractmethod
    def edit_scores(self, scores: Tensor, keys: Keys) -> Tensor:
        """Scores of every row's newest query in one block, scaled and masked: float32 [B, heads, 1, kv] -> the same shape.

        `scores.softmax(-1)` gives the weights; a method that only reads them returns the scores unchanged.
        """

    def blocks(self, count: int) -> range:
        """The blocks it acts in, from 0, of a model with `count` blocks."""
        return range(count)

    def attention_pass(self, blocks: range, images: Tensor) -> EditedAttention:
        """The pass of one forward; a method with a faster way to the same scores overrides it."""
        return EditedAttention(self.name, blocks, images, self.edit_scores)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return Handles(self.edit_attention(backbone, needs_picture=self.needs_picture), report_logits(backbone, tap))

    def edit_attention(self, backbone: Backbone, *, needs_picture: bool) -> AttentionEdit:
        """Put the edit on the model."""
        blocks = self.blocks(len(backbone.layers))
        make = partial(self.attention_pass, blocks)
        return AttentionEdit(backbone, self.name, make, blocks, needs_picture=needs_picture)


def report_logits(
    backbone: Backbone, tap: Tap, values: Callable[[Tensor], dict[str, Tensor]] = lambda _: {}
) -> RemovableHandle:
    """Report the edited logits to a trace, also as `before`: without a second branch the plain logits are not known.

    `values` gives the numbers of the trace, each [B, T], for logits [B, T, vocab].
    """
    row_split = row_split_of(backbone.model)

    def report(_model: nn.Module, _args: Any, output: Any) -> None:
        if tap.listener is not None and not row_split.is_paused:
            tap.listener(Observation(values(output.logits), output.logits, output.logits))

    handle: RemovableHandle = backbone.model.register_forward_hook(report)
    return handle
