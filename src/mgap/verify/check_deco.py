"""Checks DeCo against reference vectors, through the functions that decoding calls."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mgap.backbones.logit_lens import read_out
from mgap.methods.deco import correct
from mgap.verify.compare import VectorDifference, Vectors, differ
from mgap.verify.read_layers import norm_and_head


def check(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2 of the specification: logit lens with the final norm, candidates, anchor layer, weight and blend."""
    states = torch.from_numpy(vectors["hidden_states"])  # [L + 1, B, d]; the last is before the norm
    norm, head = norm_and_head(vectors)
    layers = torch.from_numpy(vectors["candidate_layers"])
    layer_logits = read_out(states, head, norm)
    final, early = layer_logits[-1], layer_logits[layers]
    yield differ("final_logits", final, vectors["final_logits"])
    yield differ("layer_logits", layer_logits[:-1], vectors["layer_logits"])
    settings = float(vectors["alpha"]), float(vectors["top_p"]), int(vectors["top_k"])
    step = correct(final, early, *settings)
    yield differ("selected_layer", layers[step.chosen], vectors["selected_layer"])
    yield differ("max_prob", step.values["max_prob"], vectors["max_prob"])
    yield differ("n_candidates", step.values["candidates"], vectors["n_candidates"])
    yield differ("out", step.scores, vectors["out"])
    yield differ("argmax", step.scores.argmax(-1), vectors["argmax"])
