"""DoLa (Chuang and others, ICLR 2024, arXiv 2309.03883): subtract the early layer that differs most from the last one.

    q = log softmax(l),   r_j = log softmax(l_j),   l_j = W hs[j] for j in J,   A = argmax_j divergence(q, r_j)
    s = q - r_A,   s[v] = -inf where q[v] < max q + ln(relative_top)

A is chosen at every token and for every row. Seam: states of the layers J and the head. Cost: 1 forward per token and |J| head
products. All decoding modes. There is no strength; `relative_top=1` keeps only the plain model's most likely token.

Paper and code differ in the divergence. With M the mean of both distributions, the paper uses Jensen-Shannon, the sum over the
vocabulary of KL(.||M); the code uses KL(M||.) and the mean. We follow the code (preset "reference-code"); preset "paper" is the
other. The code chooses one layer for a whole batch and masks its first row only; here rows are independent. Its runs also use a
repetition penalty of 1.2, which is an option of the decoding, not of the method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.head import Head
from mgap.methods.head_inputs import HeadInputs, Weight, mix_states
from mgap.methods.kinds.layers import Combined, LayersMethod, layer_indices
from mgap.settings import check_choice, check_share, check_switch


def mixture_divergence(q: Tensor, r: Tensor) -> Tensor:
    """The authors' code: (KL(M||q) + KL(M||r)) / 2 as a mean over the vocabulary; log-probabilities [..., vocab]."""
    log_m = torch.logaddexp(q, r) - math.log(2)
    m = log_m.exp()
    return (torch.where(m > 0, m * (log_m - q), 0.0).mean(-1) + torch.where(m > 0, m * (log_m - r), 0.0).mean(-1)) / 2


def jensen_shannon(q: Tensor, r: Tensor) -> Tensor:
    """The paper: (KL(q||M) + KL(r||M)) / 2 in nats; log-probabilities [..., vocab]."""
    log_m = torch.logaddexp(q, r) - math.log(2)
    p_q, p_r = q.exp(), r.exp()
    return (torch.where(p_q > 0, p_q * (q - log_m), 0.0).sum(-1) + torch.where(p_r > 0, p_r * (r - log_m), 0.0).sum(-1)) / 2


DIVERGENCES = {"mixture": mixture_divergence, "jensen-shannon": jensen_shannon}
PRESETS: dict[str, dict[str, Any]] = {
    "reference-code": {"divergence": "mixture"},
    "paper": {"divergence": "jensen-shannon"},
}


def contrast_layers(final: Tensor, early: Tensor, relative_top: float, divergence: str) -> Combined:
    """The formula above on final logits [..., vocab] and those of J [layers, ..., vocab]; of equal layers, the lowest."""
    q, r = final.log_softmax(-1), early.log_softmax(-1)
    divergences = DIVERGENCES[divergence](q.expand_as(r), r)  # [layers, ...]
    divergences = divergences.nan_to_num(nan=-torch.inf)  # an unnormed early state may overflow in half precision: not chosen
    chosen = divergences.argmax(0)  # [...]
    scores = q - r.gather(0, chosen[None, ..., None].expand(1, *q.shape))[0]
    if relative_top > 0:
        scores = scores.masked_fill(q < q.amax(-1, keepdim=True) + math.log(relative_top), -torch.inf)
    return Combined(scores, chosen, lambda: {"js": divergences.gather(0, chosen[None])[0], "kept": scores.isfinite().sum(-1)})


@dataclass(frozen=True)
class DoLa(LayersMethod):
    """Decoding by contrasting layers. Settings that are not given come from the preset.

    `layers` is "low" (even layers of the lower half: answers and reasoning), "high" (of the upper half: TruthfulQA), or
    indices; a single index is the static variant. `lens_norm=True` applies the final norm to early states, as some ports do.
    """

    name: ClassVar[str] = "dola"
    summary: ClassVar[str] = "subtract the early layer that differs most from the last one"
    cut: ClassVar[str] = "relative_top"
    moved_by: ClassVar[str] = "weight"  # of the early layer: always 1 in DoLa
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    layers: str | int | Sequence[int] = "low"
    relative_top: float = 0.1
    lens_norm: bool = False
    preset: str = "reference-code"
    divergence: str | None = None

    def __post_init__(self) -> None:
        self.fill_from_preset()
        check_choice("divergence", str(self.divergence), DIVERGENCES)
        check_switch("lens_norm", self.lens_norm)
        check_share("relative_top", self.relative_top)
        if self.layers not in ("low", "high"):
            object.__setattr__(self, "layers", layer_indices(self.layers, "low, high, or "))

    def early_layers(self, count: int, head: Head) -> tuple[int, ...]:
        """0..14 or 16..30 of 32 blocks, the same halves at other depths; without the embeddings if the head is tied to them."""
        if not isinstance(self.layers, str):
            return layer_indices(self.layers)
        middle = 2 * math.ceil(count / 4)
        half = range(0, middle, 2) if self.layers == "low" else range(middle, count, 2)
        return tuple(layer for layer in half if layer > 0 or not head.tied)

    @property
    def is_normed(self) -> bool:
        return self.lens_norm

    def combine(self, final: Tensor, early: Tensor) -> Combined:
        return contrast_layers(final, early, self.relative_top, str(self.divergence))

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        """h - strength hs[A], after the norm if `lens_norm`: softmax ignores the constant that log softmax subtracts."""
        return mix_states(self.name, head, (1.0, -strength), (inputs.h, inputs.anchor))

    def own_strength(self, inputs: HeadInputs) -> Weight:  # noqa: ARG002
        return 1.0
