"""VAF, visual amplification fusion (Yin et al., CVPR 2025): text attends more to the picture and less to what stands before it.

    A[i, j] <- enhance A[i, j]    j an image key            i any query after the last image key, in blocks [start, end),
    A[i, j] <- suppress A[i, j]   j before the first one    A = q k / sqrt(d) before the mask

(q k_j) f_j = q (f_j k_j), so we scale the keys and leave the rest to torch's fused attention; the cache keeps them as they are.
A score is multiplied, not raised: a negative one becomes more negative. Cost: 1 forward per token, and a product of the keys in
the blocks of the range; at the prompt these attend twice, since queries up to the picture keep plain keys. A row without a
picture decodes plainly. The constants are those of the authors' code; summaries of the paper give (1.15, 0.9) and (1.1, 0.85).
Their code edits all heads, and its picture has a fixed place; we find it in each row. `heads` restricts the edit, as summaries
say the paper does: the share of heads, in each block and forward, with most of the last query's plain attention on the picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.errors import SettingError
from mgap.methods.base import Handles, Method, Removable, Seam, Tap
from mgap.methods.kinds.attention import AttentionEdit, AttentionMethod, report_logits
from mgap.methods.kinds.attention_interceptor import CAUSAL, MASKED, AttentionPass, BlockAttention
from mgap.settings import check_count, check_share, check_strength
from mgap.types import Mode


def key_factors(images: Tensor, enhance: float, suppress: float, dtype: torch.dtype) -> Tensor:
    """What a text query's score is multiplied by at every key, [B, kv], given the image keys, bool [B, kv]."""
    seen = images.cumsum(-1)  # image keys so far
    is_before = (seen == 0) & (seen[:, -1:] > 0)
    return images.new_ones(images.shape, dtype=dtype).masked_fill(is_before, suppress).masked_fill(images, enhance)


def text_queries(images: Tensor) -> Tensor:
    """The positions after the last image key, bool [B, kv]; none in a row without a picture."""
    seen = images.cumsum(-1)
    return (seen == seen[:, -1:]) & (seen > 0) & ~images


class ScaledKeys(AttentionPass):
    """One forward in which text queries attend with scaled keys, in some blocks."""

    def __init__(self, method: VAF, blocks: range, images: Tensor) -> None:
        super().__init__(method.name)
        self.method, self.blocks = method, blocks
        self.images = images  # bool [B, positions so far]
        self.factors: dict[tuple[Any, ...], Tensor] = {}  # [B, 1, kv, 1], computed once for blocks of one device and window

    def attend(self, block: BlockAttention) -> Tensor:
        if block.index not in self.blocks:
            return block.fused()
        edited, count = replace(block, key=self.scale(block.key)).fused(), block.query.shape[2]
        if count == 1 and self.method.heads == 1:
            return edited  # in a row without a picture all factors are 1
        is_edited = self.text[:, -count:, None, None].to(edited.device)  # [B, T, 1, 1]
        if self.method.heads < 1:
            is_edited = is_edited & self.looking_heads(block)
        return torch.where(is_edited, edited, block.fused())

    @cached_property
    def text(self) -> Tensor:
        return text_queries(self.images)

    def scale(self, key: Tensor) -> Tensor:
        """The keys [B, key heads, kv, d] times their factors, in float32 or wider, in the keys' dtype; a copy."""
        wide, length = torch.promote_types(key.dtype, torch.float32), key.shape[2]
        shared_by = key.device, wide, length
        if shared_by not in self.factors:
            factors = key_factors(self.images, self.method.enhance, self.method.suppress, wide)
            self.factors[shared_by] = factors[:, None, -length:, None].to(key.device)
        return (key * self.factors[shared_by]).to(key.dtype)

    def looking_heads(self, block: BlockAttention) -> Tensor:
        """The heads with most of the last query's plain attention on the picture, bool [B, 1, heads, 1]."""
        scores, _ = block.newest_scores()  # [B, heads, 1, kv]
        images = self.images[:, None, None, -scores.shape[-1] :].to(scores.device)
        mass = (scores.softmax(-1) * images).sum((-2, -1))  # [B, heads]
        most = mass.topk(math.ceil(self.method.heads * mass.shape[1] - 1e-9)).indices  # in floats, 0.7 * 10 > 7
        return torch.zeros_like(mass, dtype=torch.bool).scatter(1, most, True)[:, None, :, None]


@dataclass(frozen=True)
class VAF(Method):
    """Visual amplification fusion. `start` and `end` bound the blocks, from 0; None: 9 to 14 of 32, or the same fractions.

    `heads` is the share of heads that are edited: those that look at the picture most.
    """

    name: ClassVar[str] = "vaf"
    summary: ClassVar[str] = "text attends more to the picture and less to what stands before it"
    seam: ClassVar[Seam] = Seam.ATTENTION
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = AttentionMethod.modes
    needs_picture: ClassVar[bool] = True
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"enhance": 1.0, "suppress": 1.0})
    no_state: ClassVar[str] = "changes attention in the blocks; no one number moves its state"

    enhance: float = 1.15
    suppress: float = 0.95
    start: int | None = None
    end: int | None = None
    heads: float = 1.0

    def __post_init__(self) -> None:
        for name in ("enhance", "suppress"):
            if not check_strength(name, getattr(self, name)) > 0:
                raise SettingError(f"{name}={getattr(self, name)} must be above 0: at 0 these keys would get equal scores")
        for name, least in (("start", 0), ("end", 1)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least)
        if not check_share("heads", self.heads) > 0:
            raise SettingError(f"heads={self.heads} must be above 0 and at most 1")

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        blocks = self.blocks(len(backbone.layers))
        parts: list[Removable] = []
        if not self.is_zero:
            kind = CAUSAL if self.heads == 1 else MASKED  # heads are chosen by scores, which need the mask
            make = partial(ScaledKeys, self, blocks)
            parts.append(AttentionEdit(backbone, self.name, make, blocks, needs_picture=True, kind=kind))
        return Handles(*parts, report_logits(backbone, tap))

    def blocks(self, count: int) -> range:
        """The blocks it acts in, from 0, of a model with `count` blocks; raises if the model does not have them."""
        first = 9 * count // 32
        start = first if self.start is None else self.start
        end = max(15 * count // 32, first + 1) if self.end is None else self.end
        if not 0 <= start < end <= count:
            raise SettingError(f"start={start}, end={end} must bound some of the model's {count} blocks, from 0")
        return range(start, end)
