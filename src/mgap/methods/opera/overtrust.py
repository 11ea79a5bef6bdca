"""The numbers of OPERA (Huang et al., CVPR 2024, sections 3.2 and 3.3) from attention weights, in log-space.

    phi_j = 1e-7 prod_{i >= j} (sigma w_ij)     rows i and columns j of the answer and one candidate, the diagonal included
    rho = -m for windows of up to 10 rows, m the candidate's weight on the picture; max_j phi_j afterwards

The logarithm of a column's product is a running sum: we keep one number per column, not the whole window.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

EARLY = 10  # up to so many rows, attention to the picture is rewarded; the search never returns to earlier columns
_FACTOR = math.log(1e-7)


def normalise(weights: Tensor) -> Tensor:
    """Normalise rows [..., kv] to sum to 1, after the maximum over heads."""
    return weights / weights.sum(-1, keepdim=True)


def lengthen(columns: Tensor, row: Tensor, sigma: float) -> Tensor:
    """Add a row of weights [..., n] to the columns' sums of ln(sigma w) [..., n - 1]; its last weight starts a column."""
    return F.pad(columns, (0, 1)) + (sigma * row).log()


def column_scores(columns: Tensor) -> Tensor:
    """phi_j from the sums [..., n]; a weight of zero gives zero; overflow is clamped to the dtype's maximum."""
    return (columns + _FACTOR).exp().clamp(max=torch.finfo(columns.dtype).max)


def collapse(columns: Tensor) -> tuple[Tensor, Tensor]:
    """phi = max_j phi_j and its column, the earliest of several: each [...]."""
    best = columns.max(-1, keepdim=True).values
    return column_scores(best)[..., 0], (columns == best).int().argmax(-1)


def penalty(phi: Tensor, image: Tensor, rows: int) -> Tensor:
    """rho for a window of `rows` rows: first rewards attention to the picture, later penalises attention to one word."""
    return -image if rows <= EARLY else phi


def penalise(logits: Tensor, rho: Tensor, alpha: float) -> Tensor:
    """Scores of candidates [..., candidates]."""
    return logits - alpha * rho


def most_common(values: Tensor) -> Tensor:
    """The most frequent number along the last dimension, the smallest of several: [..., n] -> [...]."""
    counts = (values.unsqueeze(-1) == values.unsqueeze(-2)).sum(-1)  # [..., n]
    is_mode = counts == counts.max(-1, keepdim=True).values
    return values.masked_fill(~is_mode, torch.iinfo(values.dtype).max).min(-1).values
