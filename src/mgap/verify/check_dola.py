"""Checks DoLa against reference vectors, through the functions that decoding calls."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mgap.backbones.logit_lens import read_out
from mgap.methods.dola import PRESETS, contrast_layers
from mgap.verify.compare import VectorDifference, Vectors, differ
from mgap.verify.read_layers import norm_and_head


def check(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2 of the specification: early logits without norm, one chosen layer per row, difference and mask."""
    states = torch.from_numpy(vectors["hidden_states"])  # [L + 1, B, d]; the last is before the norm
    norm, head = norm_and_head(vectors)
    layers = torch.from_numpy(vectors["candidate_layers"])
    early, final = read_out(states[layers], head, None), read_out(states[int(vectors["mature_layer"])], head, norm)
    yield differ("layer_logits", early, vectors["layer_logits"])
    yield differ("mature_logits", final, vectors["mature_logits"])
    divergence = PRESETS["reference-code"]["divergence"]
    step = contrast_layers(final, early, float(vectors["relative_top"]), divergence)
    js = torch.from_numpy(vectors["js"])  # [B, layers]
    yield differ("js of the chosen layer", step.values["js"], js[torch.arange(len(js)), step.chosen])
    for j in range(len(layers)):
        alone = contrast_layers(final, early[j : j + 1], float(vectors["relative_top"]), divergence)
        yield differ(f"js[{j}]", alone.values["js"], js[:, j])
    yield differ("selected_layer", layers[step.chosen], vectors["selected_layer"])
    yield differ("out", step.scores, vectors["out"])
    yield differ("argmax", step.scores.argmax(-1), vectors["argmax"])
