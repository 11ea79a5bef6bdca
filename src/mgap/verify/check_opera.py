"""Checks OPERA against reference vectors, through the functions that decoding calls."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mgap.methods.opera.overtrust import collapse, column_scores, lengthen, most_common, normalise, penalise, penalty
from mgap.verify.compare import VectorDifference, Vectors, differ, tensor


def check_opera(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2 of the specification: a window that rewards the image, and one that penalises columns."""
    for prefix in ("short_", "long_"):
        weights = normalise(tensor(vectors, f"{prefix}attn").double())  # [beams, candidates, q, kv]
        start, image_start, image_end = (int(vectors[f"{prefix}{n}"]) for n in ("response_start", "image_start", "image_end"))
        answer = weights[..., start:, start:]
        columns = answer[..., 0, :0]
        for row in range(answer.shape[-2]):  # as the answer grows
            columns = lengthen(columns, answer[..., row, : row + 1], float(vectors["scale_factor"]))
        phi, places = collapse(columns)
        image = weights[..., -1, image_start : image_end + 1].sum(-1)
        rho = penalty(phi, image, answer.shape[-2])
        adjusted = penalise(tensor(vectors, f"{prefix}candidate_scores"), rho, float(vectors["penalty_weight"]))
        yield differ(f"{prefix}local_scores_f64", column_scores(columns), vectors[f"{prefix}local_scores_f64"])
        logs = torch.log(tensor(vectors, f"{prefix}local_scores_f64"))  # the scores are tiny: compare their magnitude as well
        yield differ(f"{prefix}local_scores_f64 (log)", column_scores(columns).log(), logs)
        yield differ(f"{prefix}rollback_score_f64", phi, vectors[f"{prefix}rollback_score_f64"])
        yield differ(f"{prefix}rollback_locs", places, vectors[f"{prefix}rollback_locs"])
        yield differ(f"{prefix}rollback_loc", most_common(most_common(places)), vectors[f"{prefix}rollback_loc"])
        yield differ(f"{prefix}image_attention", image, vectors[f"{prefix}image_attention"])
        yield differ(f"{prefix}penalty", rho, vectors[f"{prefix}penalty"])
        yield differ(f"{prefix}adjusted", adjusted, vectors[f"{prefix}adjusted"])
