"""The norm and head of reference vectors, for checks of methods that read earlier layers."""

from __future__ import annotations

import torch
from torch import nn

from mgap.backbones.head import Head
from mgap.verify.compare import Vectors


def norm_and_head(vectors: Vectors) -> tuple[nn.RMSNorm, Head]:
    """An RMSNorm and a head without bias, in the dtype of the stored weights."""
    scale, weight = torch.from_numpy(vectors["norm_weight"]), torch.from_numpy(vectors["head_weight"])
    norm = nn.RMSNorm(len(scale), eps=float(vectors["norm_eps"]), dtype=scale.dtype).requires_grad_(False)
    norm.weight.copy_(scale)
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype).requires_grad_(False)
    module.weight.copy_(weight)
    return norm, Head.measure(module, torch.from_numpy(vectors["hidden_states"])[0])
