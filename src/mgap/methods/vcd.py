"""VCD, visual contrastive decoding (Leng et al., CVPR 2024): contrast with a noised copy of the picture.

    x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps,   s = CD(l(x_0), l(x_t), alpha, beta)

The noise is added to the normalised pixels, once before generation. Cost: 2 forwards per token, and every picture goes through
the vision tower twice. The noise is drawn from `seed` and the picture itself: it does not depend on the batch or its order, nor
on the model's dtype (backbones/picture_seeds.py says for which pixels).
Paper: alpha 1, beta 0.1, step 500; the authors' POPE script has beta 0.2, and their code defaults to alpha 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.picture_seeds import picture_seed
from mgap.errors import PromptError, SettingError
from mgap.methods.kinds.branch import BranchMethod, contrast
from mgap.methods.kinds.paired_forward import Inputs
from mgap.settings import check_count, check_share, check_strength

STEPS = 1000


@lru_cache(maxsize=1)
def schedule() -> tuple[Tensor, Tensor]:
    """sqrt(abar_t) and sqrt(1 - abar_t) for t = 0..999, in float64."""
    betas = torch.linspace(-6, 6, STEPS, dtype=torch.float64).sigmoid() * (0.005 - 1e-5) + 1e-5
    abar = (1 - betas).cumprod(0)
    return abar.sqrt(), (1 - abar).sqrt()


def add_noise(pixels: Tensor, noise: Tensor, step: int) -> Tensor:
    """x_t of normalised pixels; no clipping."""
    signal, spread = schedule()
    return float(signal[step]) * pixels + float(spread[step]) * noise


@dataclass(frozen=True)
class VCD(BranchMethod):
    """Visual contrastive decoding."""

    name: ClassVar[str] = "vcd"
    summary: ClassVar[str] = "contrast with the same picture drowned in noise"
    moved_by: ClassVar[str] = "alpha"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0})

    alpha: float = 1.0
    beta: float = 0.1
    noise_step: int = 500
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength("alpha", self.alpha)
        check_share("beta", self.beta)
        if check_count("noise_step", self.noise_step, least=0) >= STEPS:
            raise SettingError(f"noise_step={self.noise_step} must be from 0 to {STEPS - 1}")

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        noised = dict(main)
        for key in backbone.pixel_keys:
            if key not in main:
                raise PromptError(f"{self.name} contrasts with a noised picture: give a picture, or leave {self.name} off")
            pictures = [main[key][rows] for rows in backbone.pictures(main)]
            parts = [add_noise(pixels.float(), self.noise(backbone, pixels), self.noise_step) for pixels in pictures]
            noised[key] = torch.cat(parts).to(main[key].dtype)
        return noised

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return contrast(main, branch, self.alpha, self.beta), {}

    def noise(self, backbone: Backbone, pixels: Tensor) -> Tensor:
        """Standard normal in float32, drawn on the CPU from the seed and one picture's pixels."""
        seed = picture_seed(backbone, {backbone.pixel_keys[0]: pixels}, salt=f"{self.seed}") >> 1
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(pixels.shape, generator=generator).to(pixels.device)
