"""Which moved states have departed, searching the bank again only where the answer is in doubt.

d_k is a mean of distances, so it changes by no more than the state moves: |d_k(h') - d_k(h)| <= |h' - h|. If the plain d_k is
farther from tau than the step is long, the state stays on its side of tau and needs no new search.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mgap.priors.manifold import Manifold

_SLACK = 1e-4  # of tau: distances are rounded


def are_outside(manifold: Manifold, plain: Tensor, plain_distances: Tensor, moved: Tensor) -> Tensor:
    """Whether each moved state [n, d] is outside; `plain` [n, d] are the states before, `plain_distances` [n] their d_k."""
    if manifold.metric != "euclidean":  # the bound holds for this distance only
        return manifold.distances(moved) > manifold.tau
    step = torch.linalg.vector_norm(moved - plain.to(moved), dim=-1).to(plain_distances)
    is_outside = plain_distances > manifold.tau
    in_doubt = (plain_distances - manifold.tau).abs() <= step + _SLACK * manifold.tau
    if in_doubt.any():
        searched = manifold.distances(moved[in_doubt.to(moved.device)])
        is_outside[in_doubt] = (searched > manifold.tau).to(is_outside.device)
    return is_outside
