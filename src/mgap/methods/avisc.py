"""AvisC, attentional vision calibration (Woo et al., Findings of ACL 2025): contrast with a branch of the blind tokens only.

    r_i = mean over heads of attention[last query, image tokens] in block i,   share_i = sum(r_i) / sum over blocks of sum(r)
    a = mean of r_i over the fewest blocks, largest share first, whose shares add up to gamma
    branch: image tokens with a_j < mean(a) + lam std(a) are zeroed;   s = CD(l, l', alpha, beta)

Blind tokens draw most of the attention and tell no objects apart. The branch keeps only them, and what it says is subtracted.
They are chosen once, at the end of the prompt, as in the authors' code; the paper's text says at every token. Cost: 2 forwards
per token (sequential for the prompt), one pass through the vision tower. Paper: gamma 0.5, lam 1, beta 0.1, alpha 2.5 to 3 by
model; the authors' scripts have alpha 1 for questions and 2.5 for captions, two presets here. Their code sums shares over the
batch and has the picture's place written in; here every row is its own. Where l' is NaN it puts l; here that is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.methods.base import Removable, Seam, Tap
from mgap.methods.kinds.branch import BranchMethod, check_pictures, contrast
from mgap.methods.kinds.dependent_branch import MaskedBranch, refuse_nan
from mgap.methods.kinds.paired_forward import Inputs, RowState
from mgap.settings import check_share, check_signed, check_strength
from mgap.types import Mode

PRESETS: dict[str, dict[str, Any]] = {"questions": {"alpha": 1.0}, "captions": {"alpha": 2.5}}


class BlindTokens(NamedTuple):
    """What is found in the attention of the prompt's last token."""

    share: Tensor  # [blocks, B] of all attention to the picture
    chosen: Tensor  # bool [blocks, B]
    attention: Tensor  # [B, T], mean over the chosen blocks; 0 outside the picture
    threshold: Tensor  # [B]
    hidden: Tensor  # bool [B, T]: image tokens that are not blind


def find_blind(attention: Tensor, images: Tensor, gamma: float, lam: float) -> BlindTokens:
    """The formula above, on weights [blocks, B, T] and image positions, bool [B, T]; of equal shares, the lowest block."""
    weights = attention.masked_fill(~images, 0.0)
    share = weights.sum(-1)  # [blocks, B]
    share = share / share.sum(0)
    order = share.argsort(dim=0, descending=True, stable=True)
    count = ((share.gather(0, order).cumsum(0) < gamma).sum(0) + 1).clamp(max=len(share))  # [B]; rounding may not reach 1
    chosen = order.argsort(dim=0) < count
    a = (weights * chosen.unsqueeze(-1)).sum(0) / count.unsqueeze(-1)  # [B, T]
    n, least = images.sum(-1), a.masked_fill(~images, torch.inf).amin(-1)  # [B]
    mean = (a.sum(-1) / n).clamp(least, a.amax(-1))  # rounding must not lift it above equal weights
    squares = (a - mean.unsqueeze(-1)).masked_fill(~images, 0.0).square().sum(-1)
    threshold = mean + lam * (squares / (n - 1).clamp(min=1)).sqrt()  # a single token is blind
    return BlindTokens(share, chosen, a, threshold, images & (a < threshold.unsqueeze(-1)))


@dataclass(frozen=True)
class AvisC(BranchMethod):
    """Attentional vision calibration. `gamma` is the share of attention that the chosen blocks cover.

    `lam` is the threshold of a blind token, in standard deviations above the mean. The preset sets alpha.
    """

    name: ClassVar[str] = "avisc"
    summary: ClassVar[str] = "contrast with a branch that sees the most attended image tokens only"
    seam: ClassVar[Seam] = Seam.ATTENTION
    modes: ClassVar[frozenset[Mode]] = BranchMethod.modes - {Mode.STATIC, Mode.COMPILE}
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(PRESETS)

    alpha: float | None = None
    beta: float = 0.1
    gamma: float = 0.5
    lam: float = 1.0
    preset: str = "questions"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fill_from_preset()
        check_strength("alpha", self.strength)
        for name in ("beta", "gamma"):
            check_share(name, getattr(self, name))
        check_signed("lam", self.lam)

    @property
    def strength(self) -> float:
        """alpha, filled in from the preset."""
        return self.alpha  # type: ignore[return-value]  # set above

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return MaskedBranch(backbone, self, tap, self.hide, every_step=False)

    def hide(self, attention: Tensor, images: Tensor) -> tuple[Tensor, RowState]:
        """The image positions that the branch does not see, and what a trace shows of the choice."""
        found = find_blind(attention, images, self.gamma, self.lam)
        blind = (images & ~found.hidden).sum(-1)
        return found.hidden, {"layers": found.chosen.sum(0), "blind": blind, "threshold": found.threshold}

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        """The main rows' inputs; which image tokens the branch does not see is known only after the main forward."""
        check_pictures(self.name, backbone, main)
        return dict(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        if step == 1:
            refuse_nan(self.name, branch)
        return contrast(main, branch, self.strength, self.beta), {}

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:
        scores, _ = super().weigh(main, branches, step, kept)
        return scores, dict(kept)
