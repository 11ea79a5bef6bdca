"""Low-rank adapters (LoRA, arXiv 2106.09685) on every linear layer of a language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mgap.backbones.identity import short_name
from mgap.pocket.natural import DOWN, UP

SCALE = 2.0  # of the product, which is learnt at the same rate as everything else


class Adapted(nn.Module):
    """A frozen linear layer plus a learnt product of two thin matrices, which is zero at first."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        weight = linear.weight
        self.down = nn.Parameter(torch.randn(rank, linear.in_features, device=weight.device) * linear.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank, device=weight.device))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + SCALE * F.linear(F.linear(x, self.down), self.up)  # type: ignore[no-any-return]


def adapt(language_model: Any, rank: int) -> list[nn.Parameter]:
    """Freeze a model, put adapters on the linear layers of its blocks, and return what is left to learn."""
    language_model.requires_grad_(False)
    weights = []
    for block in language_model.layers:
        for part in (block.self_attn, block.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    adapted = Adapted(child, rank)
                    setattr(part, name, adapted)
                    weights += [adapted.down, adapted.up]
    return weights


def trained_tensors(model: Any) -> dict[str, Tensor]:
    """What `mgap.pocket.natural.merge` reads: the adapters, and all of the tower and the projector, in bfloat16."""
    tensors: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            tensors |= {name + DOWN: module.down, name + UP: SCALE * module.up}
    for part in ("model.vision_tower", "model.multi_modal_projector"):
        tensors |= {f"{part}.{name}": weight for name, weight in model.get_submodule(part).named_parameters()}
    return {short_name(name): tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
