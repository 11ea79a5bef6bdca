"""PAI, pay attention to image (Liu et al., ECCV 2024): stronger attention to the picture, contrasted with a text-only branch.

    A[last query, j] += alpha |A[last query, j]|   for image keys j, after the mask, before the softmax, in blocks [start, end)
    s = gamma c + (1 - gamma) u,   s[v] = -inf where c[v] < max c + ln(beta),   c, u = log softmax of l and of l_text

The edit replaces "eager" and "sdpa" attention (kinds/attention.py): the prompt goes through torch's fused attention; for its
last row and every new token we compute the scores. Cost: 2 forwards per token; 1 at gamma = 1, without branch and cut. Paper:
alpha by model, 0.2 to 0.6, gamma 1.1; the authors' command line has alpha 0.2, gamma 2 (preset "reference-code"). Under beam
search their branch keeps the wrong histories; ours follows the beams. As in their code, the branch loses the picture's
placeholders and keeps the text around them, such as a newline, which "no_image" elsewhere drops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.errors import PromptError, SettingError
from mgap.methods.base import Handles, Removable, Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.attention import AttentionMethod, EditedAttention, Keys, report_logits
from mgap.methods.kinds.attention_interceptor import BlockAttention, check_kernel
from mgap.methods.kinds.branch import BranchMethod, plausible
from mgap.methods.kinds.paired_forward import Inputs, PairedForward
from mgap.settings import check_share, check_strength


def raise_scores(scores: Tensor, keys: Tensor, alpha: float) -> Tensor:
    """A + alpha |A| of the last query at the keys [B, kv]; scores [B, heads, queries, kv]."""
    last = scores[..., -1:, :]
    gain = alpha * last.abs().masked_fill(~keys[:, None, None, :], 0.0)
    return torch.cat([scores[..., :-1, :], last + gain], dim=-2)


def guide(main: Tensor, branch: Tensor, gamma: float, beta: float) -> Tensor:
    """gamma c + (1 - gamma) u of logits [..., vocab], without tokens that are implausible in the main branch."""
    c = main.log_softmax(-1)
    if gamma == 1:
        return c
    return plausible(gamma * c + (1 - gamma) * branch.log_softmax(-1), c, beta)


class RaisedAttention(EditedAttention):
    """The edit in one forward, with fewer kernels for rows with a single query."""

    def __init__(self, method: PAI, blocks: range, images: Tensor) -> None:
        super().__init__(method.name, blocks, images, method.edit_scores)
        self.alpha = method.strengths[0]
        self.shared: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def attend_newest(self, block: BlockAttention) -> Tensor:
        """[B, 1, heads, d] of s q k + alpha s |q k| + mask."""
        query, key, value = block.query, block.key, block.value
        batch, heads, _, width = query.shape
        scaling = block.scaling or width**-0.5
        bias, gain = self.weights(block, scaling)
        raw = query.reshape(batch, key.shape[1], -1, width) @ key.transpose(-1, -2)  # [B, key heads, heads that share one, kv]
        scores = torch.addcmul(torch.add(bias, raw, alpha=scaling), raw.abs(), gain)
        return (scores.softmax(-1).to(value.dtype) @ value).reshape(batch, 1, heads, -1)

    def weights(self, block: BlockAttention, scaling: float) -> tuple[Tensor, Tensor]:
        """The mask as a bias, and the weight of |q k| at each key: [B, 1, 1, kv] in float32, computed once for all blocks."""
        key, mask = block.key, block.required_mask
        shared_by = id(mask), key.device, key.shape[2], scaling
        if shared_by not in self.shared:
            bias = mask.float() if mask.dtype != torch.bool else torch.where(mask, 0.0, -torch.inf)
            self.shared[shared_by] = bias, self.image_keys(key)[:, None, None] * (self.alpha * scaling)
        return self.shared[shared_by]


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"alpha": 0.5, "gamma": 1.1},
    "reference-code": {"alpha": 0.2, "gamma": 2.0},
}


@dataclass(frozen=True)
class PAI(AttentionMethod, BranchMethod):
    """Pay attention to image. `start` and `end` bound the blocks, from 0; no `end` means the last block."""

    name: ClassVar[str] = "pai"
    summary: ClassVar[str] = "attend more to the picture, and contrast with a text-only branch"
    forwards: ClassVar[float] = BranchMethod.forwards
    moved_by: ClassVar[str] = "gamma - 1"  # at 0 the state has the edited attention, it is not plain
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0, "gamma": 1.0})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(PRESETS)

    alpha: float | None = None
    gamma: float | None = None
    start: int = 2
    end: int | None = None
    beta: float = 0.1
    preset: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fill_from_preset()
        for name in ("alpha", "gamma"):
            check_strength(name, getattr(self, name))
        check_share("beta", self.beta)

    @property
    def strengths(self) -> tuple[float, float]:
        """alpha and gamma, filled in from the preset."""
        return float(self.alpha or 0), float(self.gamma or 0)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        alpha, gamma = self.strengths
        self.blocks(len(backbone.layers))  # raises if the model does not have these blocks
        if alpha > 0:
            check_kernel(backbone, self.name)
        parts: list[Removable] = [report_logits(backbone, tap) if gamma == 1 else PairedForward(backbone, self, tap)]
        if alpha > 0:  # after PairedForward: the edit must see the rows of both branches
            parts.append(self.edit_attention(backbone, needs_picture=gamma == 1))
        return Handles(*parts)

    def edit_scores(self, scores: Tensor, keys: Keys) -> Tensor:
        return raise_scores(scores, keys.images & keys.visible, self.strengths[0])

    def attention_pass(self, blocks: range, images: Tensor) -> RaisedAttention:
        return RaisedAttention(self, blocks, images)

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        if backbone.pixel_keys[0] not in main:
            raise PromptError(f"{self.name} takes the picture away in its branch: give one, or leave {self.name} off")
        return backbone.without_image(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return guide(main, branch, self.strengths[1], self.beta), {}

    def require_state(self) -> None:
        if self.strengths[1] == 1:
            raise SettingError(
                "pai at gamma=1 runs no branch, and its state does not move: give another gamma; strength 0 is gamma=1 there"
            )

    def own_strength(self, inputs: HeadInputs) -> Weight:  # noqa: ARG002
        return self.strengths[1] - 1

    def blocks(self, count: int) -> range:
        end = count if self.end is None else self.end
        if not 0 <= self.start < end <= count:
            raise SettingError(f"start={self.start}, end={self.end} must bound some of the model's {count} blocks, from 0")
        return range(self.start, end)
