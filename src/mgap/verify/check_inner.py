"""Checks methods that act inside the decoder, on attention or on states, against reference vectors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mgap.methods.asd import ASD, steer
from mgap.methods.avisc import AvisC, find_blind
from mgap.methods.kinds.attention_weights import least_attended, mean_of_heads
from mgap.methods.mod import MoD, divergence
from mgap.methods.pai import guide, raise_scores
from mgap.methods.sid import SID, hide_keys, kept_counts
from mgap.priors.steering import Steering
from mgap.verify.compare import VectorDifference, Vectors, differ, tensor


def check_pai(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the edited attention scores, and guidance by the text-only branch."""
    main, branch, scores = (tensor(vectors, name) for name in ("logits", "logits_uncond", "attn_scores_masked"))
    out = guide(main, branch, float(vectors["gamma"]), float(vectors["beta"]))
    yield differ("cfg_out", out, vectors["cfg_out"])
    yield differ("cfg_argmax", out.argmax(-1), vectors["cfg_argmax"])
    _, keys = _picture(vectors, scores[:, 0, 0])
    edited = raise_scores(scores, keys, float(vectors["alpha"]))
    yield differ("attn_scores_edited", edited, vectors["attn_scores_edited"])
    yield differ("attn_probs_before", scores.softmax(-1), vectors["attn_probs_before"])
    yield differ("attn_probs_after", edited.softmax(-1), vectors["attn_probs_after"])


def check_mod(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: attention to the image, tokens hidden from the branch, divergence, mode and both combinations."""
    weights = mean_of_heads(tensor(vectors, "attentions").double())  # [layers, B, kv]
    attention = weights.sum(0)  # [B, kv]
    place, images = _picture(vectors, attention)
    yield differ("image_attention", attention[:, place], vectors["image_attention"])
    theta, a1, a2 = (float(vectors[name]) for name in ("js_threshold", "alpha_complementary", "alpha_contrastive"))
    method = MoD(rho=float(vectors["keep_fraction"]), theta=theta, a1=a1, a2=a2, beta=float(vectors["beta"]))
    hidden, _ = method.hide(weights, images)
    yield differ("masked_idx", hidden[:, place].nonzero()[:, 1], vectors["masked_idx"])
    main, branch = tensor(vectors, "logits"), tensor(vectors, "logits_masked")
    out, traced = method.combine(main, branch, step=1)
    yield differ("js", divergence(main, branch), vectors["js"])
    yield differ("mode", traced["mode"], vectors["mode"])
    yield differ("out", out, vectors["out"])
    yield differ("argmax", out.argmax(-1), vectors["argmax"])


def check_sid(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: the tokens that the branch sees, its attention in later blocks, and the contrast with and without the cut."""
    attention = mean_of_heads(tensor(vectors, "attentions"))  # [B, kv]
    place, images = _picture(vectors, attention)
    kept = least_attended(attention, images, kept_counts(images, int(vectors["keep"])))
    hidden = images & ~kept
    yield differ("image_attention", attention[:, place], vectors["image_attention"])
    yield differ("kept_idx", kept[:, place].nonzero()[:, 1], vectors["kept_idx"])
    yield differ("visible", ~hidden, vectors["visible"])
    yield differ("share_count", kept_counts(images[:1], float(vectors["share"])), vectors["share_count"])
    scores = tensor(vectors, "attn_scores")  # [B, heads, T, T]
    mask = hide_keys(torch.ones(1, 1, *scores.shape[-2:], dtype=torch.bool).tril(), hidden)
    yield differ("attn_probs", scores.masked_fill(~mask, -torch.inf).softmax(-1), vectors["attn_probs"])
    main, branch = tensor(vectors, "logits"), tensor(vectors, "logits_branch")
    for suffix, beta in (("", float(vectors["beta"])), ("_uncut", 0.0)):
        out, _ = SID(alpha=float(vectors["alpha"]), beta=beta).combine(main, branch, step=1)
        yield differ(f"out{suffix}", out, vectors[f"out{suffix}"])
        yield differ(f"argmax{suffix}", out.argmax(-1), vectors[f"argmax{suffix}"])


def check_avisc(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: each block's share, the chosen blocks, the threshold, tokens hidden from the branch, and the contrast."""
    weights = mean_of_heads(tensor(vectors, "attentions"))  # [layers, B, kv]
    place, images = _picture(vectors, weights[0])
    found = find_blind(weights, images, float(vectors["gamma"]), float(vectors["lam"]))
    order = found.share.argsort(dim=0, descending=True)
    yield differ("layer_share", found.share.T, vectors["layer_share"])
    yield differ("layers", order.masked_fill(~found.chosen.gather(0, order), -1).T, vectors["layers"])
    yield differ("n_layers", found.chosen.sum(0), vectors["n_layers"])
    yield differ("token_attention", found.attention[:, place], vectors["token_attention"])
    yield differ("threshold", found.threshold, vectors["threshold"])
    yield differ("masked", found.hidden[:, place], vectors["masked"])
    method = AvisC(alpha=float(vectors["alpha"]), beta=float(vectors["beta"]))
    out, _ = method.combine(tensor(vectors, "logits"), tensor(vectors, "logits_masked"), step=1)
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


def _picture(vectors: Vectors, like: Tensor) -> tuple[slice, Tensor]:
    """The picture's keys: as a slice, and as bool [B, kv] for rows `like` these."""
    place = slice(int(vectors["img_start"]), int(vectors["img_end"]))
    keys = torch.zeros_like(like, dtype=torch.bool)
    keys[:, place] = True
    return place, keys
