"""DeCo (Wang and others, ICLR 2025, arXiv 2410.11779): add the logits of the middle layer that is surest of a candidate.

    C = the most likely tokens of softmax(l), until they hold top_p of it, at most top_k
    (A, v*) = argmax over i in I, v in C of softmax(l_i)_v,   m = softmax(l_A)_v*,   l_i = W norm(hs[i])
    s_v = l_v + alpha m l_A,v for v in C,   -inf for every other token

A is chosen at every token and for every row; of equal layers, the lowest. Seam: states of the layers I and the head. Cost: 1
forward per token and |I| head products. All decoding modes. Greedy decoding at `alpha=0` is the plain model's; sampling is
still restricted to the candidates C.

Paper and code agree: alpha 0.6, layers 20 to 28 of 32, top_p 0.9 and top_k 20. The code runs on 32 blocks only; here other
depths use the same fractions (22 to 31 of 36). Its greedy and sampling loops take one row at a time; here rows are independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.head import Head
from mgap.errors import SettingError
from mgap.methods.head_inputs import HeadInputs, Weight, mix_states
from mgap.methods.kinds.layers import Combined, LayersMethod, layer_indices
from mgap.settings import check_share, check_strength


def correct(final: Tensor, early: Tensor, alpha: float, top_p: float, top_k: int) -> Combined:
    """The formula above on final logits [..., vocab] and those of I [layers, ..., vocab].

    Layers are compared by log p = (l_v - t) - log1p(sum of exp(l_j - t) over the tokens other than the top one, of logit t).
    Several sure layers have p = 1 in float32; their log p still differ.
    """
    top = final.softmax(-1).topk(min(top_k, final.shape[-1]))  # [..., k]
    mass_before = top.values.cumsum(-1).roll(1, -1)  # of the tokens before each one
    mass_before[..., 0] = -1.0  # the first is always a candidate
    is_candidate = mass_before < top_p  # [..., k]
    columns = early.gather(-1, top.indices.expand(len(early), *top.indices.shape))  # [layers, ..., k]
    surest = early.max(-1, keepdim=True)  # [layers, ..., 1]
    others = (early - surest.values).exp().scatter(-1, surest.indices, 0.0).sum(-1, keepdim=True)  # [layers, ..., 1]
    log_p = (columns - surest.values) - others.log1p()  # [layers, ..., k]
    best = log_p.masked_fill(~is_candidate, -torch.inf).amax(-1)  # [layers, ...]
    chosen = best.argmax(0)  # [...]
    m = best.gather(0, chosen[None])[0].exp()
    anchor = columns.gather(0, chosen[None, ..., None].expand(1, *is_candidate.shape))[0]  # [..., k]
    blend = (final.gather(-1, top.indices) + alpha * m.unsqueeze(-1) * anchor).masked_fill(~is_candidate, -torch.inf)
    scores = torch.full_like(final, -torch.inf).scatter(-1, top.indices, blend)
    return Combined(scores, chosen, lambda: {"max_prob": m, "candidates": is_candidate.sum(-1)})


@dataclass(frozen=True)
class DeCo(LayersMethod):
    """Dynamic correction decoding. `layers` are indices of hs; None: 20 to 28 of 32 blocks, or the same fractions."""

    name: ClassVar[str] = "deco"
    summary: ClassVar[str] = "add the middle layer that is surest of a likely token"
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0})

    alpha: float = 0.6
    layers: int | Sequence[int] | None = None
    top_p: float = 0.9
    top_k: int = 20

    def __post_init__(self) -> None:
        check_strength("alpha", self.alpha)
        check_share("top_p", self.top_p)
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1:
            raise SettingError(f"top_k={self.top_k!r} must be a whole number of at least 1")
        if self.layers is not None:
            object.__setattr__(self, "layers", layer_indices(self.layers))

    def early_layers(self, count: int, head: Head) -> tuple[int, ...]:  # noqa: ARG002  the head does not matter here
        if self.layers is not None:
            return layer_indices(self.layers)
        start, stop = 20 * count // 32, 29 * count // 32
        return tuple(range(start, max(stop, start + 1)))

    @property
    def is_normed(self) -> bool:
        return True

    def combine(self, final: Tensor, early: Tensor) -> Combined:
        return correct(final, early, self.alpha, self.top_p, self.top_k)

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        """h + strength m norm(hs[A]): neither A nor m depends on the strength."""
        m = inputs.values["max_prob"].unsqueeze(-1)
        return mix_states(self.name, head, (1.0, strength * m), (inputs.h, inputs.anchor))
