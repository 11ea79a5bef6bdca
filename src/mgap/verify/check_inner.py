"""Checks methods that act inside the decoder, on attention or on states, against reference vectors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mgap.methods.asd import ASD, steer
from mgap.methods.kinds.attention_weights import mean_of_heads
from mgap.methods.mod import MoD, divergence, least_attended
from mgap.methods.nullu import project_out
from mgap.methods.pai import guide, raise_scores
from mgap.priors.null_space import NullSpace, difference
from mgap.priors.steering import Steering
from mgap.verify.compare import VectorDifference, Vectors, differ, tensor


def check_pai(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the edited attention scores, and guidance by the text-only branch."""
    main, branch, scores = (tensor(vectors, name) for name in ("logits", "logits_uncond", "attn_scores_masked"))
    out = guide(main, branch, float(vectors["gamma"]), float(vectors["beta"]))
    yield differ("cfg_out", out, vectors["cfg_out"])
    yield differ("cfg_argmax", out.argmax(-1), vectors["cfg_argmax"])
    keys = torch.zeros(len(scores), scores.shape[-1], dtype=torch.bool)  # [B, kv]
    keys[:, int(vectors["img_start"]) : int(vectors["img_end"])] = True
    edited = raise_scores(scores, keys, float(vectors["alpha"]))
    yield differ("attn_scores_edited", edited, vectors["attn_scores_edited"])
    yield differ("attn_probs_before", scores.softmax(-1), vectors["attn_probs_before"])
    yield differ("attn_probs_after", edited.softmax(-1), vectors["attn_probs_after"])


def check_mod(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: attention to the image, tokens hidden from the branch, divergence, mode and both combinations."""
    attention = mean_of_heads(tensor(vectors, "attentions").double()).sum(0)  # [B, kv]
    start, end = int(vectors["img_start"]), int(vectors["img_end"])
    images = torch.zeros_like(attention, dtype=torch.bool)
    images[:, start:end] = True
    yield differ("image_attention", attention[:, start:end], vectors["image_attention"])
    theta, a1, a2 = (float(vectors[name]) for name in ("js_threshold", "alpha_complementary", "alpha_contrastive"))
    method = MoD(rho=float(vectors["keep_fraction"]), theta=theta, a1=a1, a2=a2, beta=float(vectors["beta"]))
    hidden = least_attended(attention, images, method.rho)
    yield differ("masked_idx", hidden[:, start:end].nonzero()[:, 1], vectors["masked_idx"])
    main, branch = tensor(vectors, "logits"), tensor(vectors, "logits_masked")
    out, traced = method.combine(main, branch, step=1)
    yield differ("js", divergence(main, branch), vectors["js"])
    yield differ("mode", traced["mode"], vectors["mode"])
    yield differ("out", out, vectors["out"])
    yield differ("argmax", out.argmax(-1), vectors["argmax"])


def check_asd(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the steering vectors, the steered states of both branches, and their contrast."""
    steering = Steering.from_states(tensor(vectors, "factual"), tensor(vectors, "hallucinated"))
    yield differ("steer", steering.vectors, vectors["steer"])
    yield differ("steer_unit", steering.units, vectors["steer_unit"])
    lam_pos, lam_neg, alpha = (float(vectors[name]) for name in ("lambda_pos", "lambda_neg", "alpha"))
    hidden, shift = tensor(vectors, "hidden"), steering.vectors.unsqueeze(1)  # [L, B, d], [L, 1, d]
    yield differ("hidden_pos", steer(hidden, shift, lam_pos), vectors["hidden_pos"])
    yield differ("hidden_neg", steer(hidden, shift, -lam_neg), vectors["hidden_neg"])
    method = ASD(steering=steering, alpha=alpha)
    out, _ = method.combine(tensor(vectors, "logits_pos"), tensor(vectors, "logits_neg"), step=1)
    yield differ("out", out, vectors["out"])
    yield differ("argmax", out.argmax(-1), vectors["argmax"])


def check_nullu(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the differences of captions, their directions, and MLPs that do not write along them."""
    truthful, hallucinated = tensor(vectors, "truthful"), tensor(vectors, "hallucinated")  # [N, L, d]
    yield differ("difference", difference(truthful, hallucinated).transpose(0, 1), vectors["difference"])
    rank, blocks = int(vectors["rank"]), vectors["layers"].tolist()
    where = {"start": blocks[0], "end": blocks[-1] + 1}
    space = NullSpace.from_states(truthful, hallucinated, rank, **where)
    yield differ("singular_values", space.singular_values, vectors["singular_values"])
    yield differ("projector", space.projectors, vectors["projector"])
    centred = NullSpace.from_states(truthful, hallucinated, rank, centring=float(vectors["centring"]), **where)
    yield differ("projector_centred", centred.projectors, vectors["projector_centred"])
    down = tensor(vectors, "down_weight")  # [blocks, d, inner]
    written = tensor(vectors, "mlp_in") @ down.mT  # [blocks, B, d]
    yield differ("mlp_out_before", written, vectors["mlp_out_before"])
    for name, values, axis in (("edited_weight", down, 1), ("mlp_out_after", written, 2)):
        pairs = zip(values.movedim(axis, -1), space.bases, strict=True)
        projected = torch.stack([project_out(one, basis) for one, basis in pairs]).movedim(-1, axis)
        yield differ(name, projected, vectors[name])
