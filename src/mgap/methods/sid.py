"""SID, self-introspective decoding (Huo et al., ICLR 2025): contrast with a branch that sees the least attended of the picture.

    w_j = mean over heads of attention[newest query, j] in block K - 1,   j an image token
    branch: in blocks from K on, no query sees an image token other than the `keep` ones of least w
    s = CD(l, l', alpha, beta)

What the branch still says about the picture is invented in context, so it is subtracted. Both branches read the same inputs:
the picture is encoded once, and blocks below K compute the same in both. Masked tokens stay in the cache, so every new token
chooses again, by its own attention; only the mask changes. Cost: 2 forwards per token, and one query's scores in one block. The
mask replaces "eager" and "sdpa" attention (kinds/attention_interceptor.py). Paper: alpha 1, beta 0.1, K from 2 to 5, about a
tenth of the tokens; the authors' command for POPE keeps 100 of 576 from K = 2 on, our default as a share. Their alpha and beta
do not reach the decoding loop, where alpha 0.5 acts, and greedy decoding chooses before the cut: preset "reference-code", alpha
0.5 and beta 0. Their code ranks by the first row of a batch and sees padding in lower blocks; here every row is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mgap.backbones.base import Backbone
from mgap.errors import SettingError
from mgap.methods.base import Handles, Removable, Seam, Tap
from mgap.methods.kinds.attention import AttentionEdit
from mgap.methods.kinds.attention_interceptor import AttentionPass, BlockAttention, check_kernel, visible_keys
from mgap.methods.kinds.attention_weights import least_attended, mean_of_heads
from mgap.methods.kinds.branch import BranchMethod, check_pictures, contrast
from mgap.methods.kinds.main_rows import RowSplit, row_split_of
from mgap.methods.kinds.paired_forward import Inputs, PairedForward
from mgap.settings import check_count, check_share, check_strength
from mgap.types import Mode

MOST = 2**31 - 1  # tokens that `keep` may name
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"alpha": 1.0, "beta": 0.1},
    "reference-code": {"alpha": 0.5, "beta": 0.0},
}


def kept_counts(images: Tensor, keep: float) -> Tensor:
    """How many of each row's image positions, bool [B, T], the branch sees: `keep` of them, or a share, and at least one."""
    n = images.sum(-1)
    return torch.full_like(n, keep) if isinstance(keep, int) else (n.double() * keep).round().clamp(min=1)


def hide_keys(mask: Tensor, hidden: Tensor) -> Tensor:
    """The mask [B, 1, T, kv] without the keys `hidden`, bool [B, kv]; a query to which nothing is left sees itself."""
    queries, keys = mask.shape[-2:]
    gone = hidden[:, None, None]  # [B, 1, 1, kv]
    own = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(keys - queries).tril(keys - queries)
    gone = gone & ~(own & ~(visible_keys(mask) & ~gone).any(-1, keepdim=True))  # [B, 1, T, kv]
    return mask & ~gone if mask.dtype == torch.bool else mask.masked_fill(gone, torch.finfo(mask.dtype).min)


class LeastAttendedKeys(AttentionPass):
    """One forward in which the branch's rows see the least attended image keys only, from the block `start` on."""

    def __init__(self, method: SID, start: int, main_rows: int, images: Tensor) -> None:
        super().__init__(method.name)
        self.keep, self.start, self.main_rows = method.keep, start, main_rows
        self.images = images  # bool [B, positions so far]: the picture's
        self.hidden = torch.zeros_like(images)  # those that their row does not see
        self.usual: Tensor | None = None  # the last block's mask: blocks with the same keys share it
        self.masked: Tensor | None = None  # the same without the hidden keys

    def attend(self, block: BlockAttention) -> Tensor:
        if block.index == self.start - 1:
            self.rank(block)
        if block.index < self.start:
            return block.fused()
        if block.mask is not self.usual or self.masked is None:
            hidden = self.hidden[:, -block.key.shape[2] :].to(block.key.device)
            self.usual, self.masked = block.mask, hide_keys(block.required_mask, hidden)
        return replace(block, mask=self.masked).fused()

    def rank(self, block: BlockAttention) -> None:
        """Choose the keys to hide among those that the newest query sees; a sliding window keeps the newest keys only."""
        scores, visible = block.newest_scores()
        images = self.images[:, -block.key.shape[2] :].to(block.key.device) & visible[:, 0, 0]  # [B, kv]
        kept = least_attended(mean_of_heads(scores.softmax(-1)), images, kept_counts(images, self.keep))
        hidden = images & ~kept
        hidden[: self.main_rows] = False
        self.hidden = F.pad(hidden, (self.images.shape[1] - hidden.shape[1], 0))


@dataclass(frozen=True)
class SID(BranchMethod):
    """Self-introspective decoding. `keep` is how many image tokens the branch sees: a whole number, or a share below 1.

    `start` is K, the first block in which it does not see the others, from 0; None: 2 of 32 blocks, or the same fraction.
    """

    name: ClassVar[str] = "sid"
    summary: ClassVar[str] = "contrast with a branch that sees the least attended image tokens only"
    seam: ClassVar[Seam] = Seam.ATTENTION
    modes: ClassVar[frozenset[Mode]] = BranchMethod.modes - {Mode.STATIC, Mode.COMPILE}
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(PRESETS)

    alpha: float | None = None
    beta: float | None = None
    keep: float = 0.1736
    start: int | None = None
    preset: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fill_from_preset()
        check_strength("alpha", self.strengths[0])
        check_share("beta", self.strengths[1])
        is_count = isinstance(self.keep, int) and not isinstance(self.keep, bool) and 1 <= self.keep <= MOST
        if not is_count and not (isinstance(self.keep, float) and 0 < self.keep < 1):
            raise SettingError(
                f"keep={self.keep!r:.40} must be a whole number of tokens, from 1 to {MOST}, or a share above 0 and below 1"
            )
        if self.start is not None:
            check_count("start", self.start, least=1)

    @property
    def strengths(self) -> tuple[float, float]:
        """alpha and beta, filled in from the preset."""
        return self.alpha, self.beta  # type: ignore[return-value]  # set above

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        count = len(backbone.layers)
        start = self.first_block(count)
        check_kernel(backbone, self.name)
        make = partial(self.attention_pass, start, row_split_of(backbone.model))
        paired = PairedForward(backbone, self, tap)  # first: the pass must see the rows of both branches
        return Handles(paired, AttentionEdit(backbone, self.name, make, range(start - 1, count), needs_picture=True))

    def attention_pass(self, start: int, row_split: RowSplit, images: Tensor) -> AttentionPass:
        """The pass of one forward; the main rows may have a forward of their own."""
        main_rows = len(images) if row_split.main is None else row_split.main
        return LeastAttendedKeys(self, start, main_rows, images) if main_rows < len(images) else AttentionPass(self.name)

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        check_pictures(self.name, backbone, main)
        images = backbone.image_mask(main)
        if (kept_counts(images, self.keep) >= images.sum(-1)).any():
            few = int(images.sum(-1).min())
            raise SettingError(
                f"keep={self.keep} leaves {self.name} nothing to hide of a picture with {few} image tokens: keep fewer"
            )
        return dict(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return contrast(main, branch, *self.strengths), {}

    def first_block(self, count: int) -> int:
        """K in a model with `count` blocks."""
        start = min(max(2 * count // 32, 1), count - 1) if self.start is None else self.start
        if not 1 <= start < count:
            raise SettingError(
                f"start={self.start}: {self.name} ranks in one block and masks in the next ones, and this model has {count}: "
                f"give a start from 1 to {count - 1}, or leave {self.name} off"
            )
        return start
