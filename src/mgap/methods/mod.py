"""MoD, mixture of decoding (Chen et al., Findings of ACL 2025): add or subtract a branch with the most attended image tokens.

    w_j = sum over blocks of the mean over heads of attention[last query, j],   j an image token
    branch: the floor(n (1 - rho)) image tokens of least w are zeroed;   JS: of softmax l and softmax l' at the first new token
    s = l + a1 l'  if JS < theta,   s = (1 + a2) l - a2 l'  otherwise,   s[v] = -inf where l[v] < max l + ln(beta)

If both agree, attention was in the right place and the branch is added; otherwise it is subtracted. Each row has its own mode
for the whole answer. Cost: 2 forwards per token (sequential for the prompt), one pass through the vision tower. The authors run
without a cache, so w is the newest token's at every step: refresh="every_step", where the branch reads prompt and answer again
for every token. Their code replaces an l' that is nan by l; here that is an error, checked at the first token, and in float16,
which can overflow later, at every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.errors import SettingError
from mgap.methods.base import Removable, Seam, Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.attention_weights import least_attended
from mgap.methods.kinds.branch import BranchMethod, check_pictures, plausible
from mgap.methods.kinds.dependent_branch import MaskedBranch, refuse_nan
from mgap.methods.kinds.paired_forward import Inputs, RowState
from mgap.settings import check_choice, check_share, check_strength
from mgap.types import Mode

REFRESH = ("prefill", "every_step")
FLOOR = 5e-8  # probabilities are clipped to [FLOOR, 1 - FLOOR] and not renormalised


def hidden_counts(images: Tensor, rho: float) -> Tensor:
    """How many of each row's image positions, bool [B, T], the branch does not see: all but a share rho, rounded down."""
    return (images.sum(-1).double() * (1 - rho) + 1e-9).floor()  # in floats, 1 - 0.9 < 0.1


def divergence(main: Tensor, branch: Tensor) -> Tensor:
    """JS divergence of two predictions [..., vocab] in nats: 0 if equal, at most about ln 2."""
    p, q = (logits.softmax(-1).clamp(FLOOR, 1 - FLOOR) for logits in (main, branch))
    m = (p + q) / 2
    return ((p * (p / m).log() + q * (q / m).log()).sum(-1) / 2).clamp_min(0)


@dataclass(frozen=True)
class MoD(BranchMethod):
    """Mixture of decoding. `rho` is the share of image tokens that the branch keeps.

    `refresh` says when they are chosen: "prefill" (once, at the end of the prompt) or "every_step" (at every token, with
    branch_mode="sequential").
    """

    name: ClassVar[str] = "mod"
    summary: ClassVar[str] = "add or take away a branch that sees the most attended image tokens only"
    seam: ClassVar[Seam] = Seam.ATTENTION
    modes: ClassVar[frozenset[Mode]] = BranchMethod.modes - {Mode.STATIC, Mode.COMPILE}
    moved_by: ClassVar[str] = "a1 or a2"  # the branch's weight in the row's mode
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"a1": 0.0, "a2": 0.0})

    rho: float = 0.2
    theta: float = 0.05
    a1: float = 4.0
    a2: float = 1.0
    beta: float = 0.5
    refresh: str = "prefill"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("theta", "a1", "a2"):
            check_strength(name, getattr(self, name))
        for name in ("rho", "beta"):
            check_share(name, getattr(self, name))
        check_choice("refresh", self.refresh, REFRESH)
        if self.refresh == "every_step" and self.branch_mode != "sequential":
            raise SettingError("refresh=every_step reads the branch anew after each main forward: give branch_mode=sequential")

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return MaskedBranch(backbone, self, tap, self.hide, every_step=self.refresh == "every_step")

    def hide(self, attention: Tensor, images: Tensor) -> tuple[Tensor, RowState]:
        """The image positions that the branch does not see, from the attention in all blocks together."""
        return least_attended(attention.sum(0), images, hidden_counts(images, self.rho)), {}

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        """The main rows' inputs; which image tokens the branch does not see is known only after the main forward."""
        check_pictures(self.name, backbone, main)
        return dict(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self.weigh(main, [branch], step, {})

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        (branch,) = branches
        if "js" not in kept:  # the first token decides
            refuse_nan(self.name, branch)
            kept["js"] = divergence(main, branch)  # [B]
            agree = kept["js"] < self.theta
            kept["mode"] = agree.to(main.dtype) * 2 - 1  # 1 complementary, -1 contrastive
            kept["main"] = torch.where(agree, 1.0, 1 + self.a2).unsqueeze(-1)  # [B, 1], the weight of each prediction
            kept["branch"] = torch.where(agree, self.a1, -self.a2).unsqueeze(-1)
        scores = kept["main"] * main + kept["branch"] * branch
        return plausible(scores, main, self.beta), {"js": kept["js"], "mode": kept["mode"]}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:
        mode = inputs.values["mode"].unsqueeze(-1)  # [B, 1]
        return 1 + strength * (1 - mode) / 2, strength * mode

    def own_strength(self, inputs: HeadInputs) -> Weight:
        return torch.where(inputs.values["mode"] > 0, self.a1, self.a2).unsqueeze(-1)
