"""Which moved states have departed, at the cost of the few for which it is in doubt.

d_k is a mean of distances, so it changes by no more than a state moves: |d_k(h') - d_k(h)| <= |h' - h|. A state whose plain
d_k is farther from tau than its step is long has therefore stayed on its side, and is not compared with the bank again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mgap.priors.manifold import Manifold

_SLACK = 1e-4  # of tau: distances are rounded


def are_outside(manifold: Manifold, plain: Tensor, plain_distances: Tensor, moved: Tensor) -> Tensor:
    """Whether each of the states [n, d] that plain ones [n, d] were moved to is outside; `plain_distances` [n] are theirs."""
    if manifold.metric != "euclidean":  # the bound is of that distance
        return manifold.distances(moved) > manifold.tau
    step = torch.linalg.vector_norm(moved - plain.to(moved), dim=-1).to(plain_distances)
    gone = plain_distances > manifold.tau
    open_ = (plain_distances - manifold.tau).abs() <= step + _SLACK * manifold.tau
    if open_.any():
        gone[open_] = (manifold.distances(moved[open_.to(moved.device)]) > manifold.tau).to(gone.device)
    return gone
