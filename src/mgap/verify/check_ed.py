"""Checks ED and FastED against reference vectors, through the functions that decoding calls."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mgap.methods.ed import ED, FastED, crop_weights
from mgap.methods.kinds.corner_crops import CORNERS, quarters_of, sum_quarters
from mgap.methods.kinds.largest_weights import keep_largest, mean_of_largest
from mgap.verify.compare import VectorDifference, Vectors, differ, tensor


def check(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the largest weights, the sums over quarters, the crops' weights and mixture, and FastED's choice."""
    largest: list[Tensor] = []
    for block in tensor(vectors, "attentions")[..., -1, :]:  # [B, heads, kv]
        largest = keep_largest(largest, block, int(vectors["top_layers"]))
    attention = mean_of_largest(largest, int(vectors["top_heads"]))  # [B, kv]
    picture = slice(int(vectors["img_start"]), int(vectors["img_end"]))
    yield differ("attention_map", attention[:, picture], vectors["attention_map"])
    images = torch.zeros_like(attention, dtype=torch.bool)
    images[:, picture] = True
    rows, columns = vectors["grid"].tolist()
    sums = sum_quarters(attention, quarters_of(images, [(rows, columns)] * len(images)))
    yield differ("crop_sums", sums, vectors["crop_sums"])
    tau, alpha, beta = (float(vectors[name]) for name in ("tau", "alpha", "beta"))
    weights = crop_weights(sums, tau)
    yield differ("weights", weights, vectors["weights"])
    main, crops = tensor(vectors, "logits"), tensor(vectors, "logits_crops")  # [B, vocab], [B, 4, vocab]
    kept = dict(zip(CORNERS, weights.unbind(-1), strict=True))
    for name, method in (("ensemble", ED(alpha=1.0, beta=0.0)), ("out", ED(alpha=alpha, beta=beta))):
        yield differ(name, method.weigh(main, crops.unbind(1), 1, kept)[0], vectors[name])
    chosen = sums.argmax(-1)
    yield differ("fast_crop", chosen, vectors["fast_crop"])
    best = crops[torch.arange(len(crops)), chosen]
    yield differ("out_fast", FastED(alpha=alpha, beta=beta).combine(main, best, step=1)[0], vectors["out_fast"])
