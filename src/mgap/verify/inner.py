"""Methods that act inside the decoder, on attention or on states, against reference vectors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mgap.methods.pai import guide, raise_scores
from mgap.verify.compare import Difference, Vectors, differ


def check_pai(vectors: Vectors) -> Iterator[Difference]:
    """Section 2: the edit of the scores, and the guidance by the text-only branch."""
    main, branch, scores = (_tensor(vectors, name) for name in ("logits", "logits_uncond", "attn_scores_masked"))
    out = guide(main, branch, float(vectors["gamma"]), float(vectors["beta"]))
    yield differ("cfg_out", out, vectors["cfg_out"])
    yield differ("cfg_argmax", out.argmax(-1), vectors["cfg_argmax"])
    keys = torch.zeros(len(scores), scores.shape[-1], dtype=torch.bool)  # [B, kv]
    keys[:, int(vectors["img_start"]) : int(vectors["img_end"])] = True
    edited = raise_scores(scores, keys, float(vectors["alpha"]))
    yield differ("attn_scores_edited", edited, vectors["attn_scores_edited"])
    yield differ("attn_probs_before", scores.softmax(-1), vectors["attn_probs_before"])
    yield differ("attn_probs_after", edited.softmax(-1), vectors["attn_probs_after"])


def _tensor(vectors: Vectors, name: str) -> Tensor:
    return torch.from_numpy(vectors[name])
