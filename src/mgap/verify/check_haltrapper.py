"""Checks HalTrapper against reference vectors, through the functions that its search and decoding call."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mgap.methods.haltrapper.candidates import CandidateRules, parse_reply, score_expansion, select
from mgap.methods.haltrapper.grounding import similarity
from mgap.methods.haltrapper.haltrapper import HalTrapper
from mgap.priors.object_words import Vocabulary
from mgap.verify.compare import VectorDifference, Vectors, differ, same


def check(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2: internal grounding, and both ways to combine the branches."""
    picture = slice(int(vectors["img_start"]), int(vectors["img_end"]))
    context, thing = (torch.from_numpy(vectors[f"attn_{part}"])[..., picture] for part in ("context", "object"))
    rows = zip(context.unbind(1), thing.unbind(1), strict=True)  # [layers, heads, queries, image tokens] each
    yield differ("ig_similarity", torch.stack([similarity(*row) for row in rows]), vectors["ig_similarity"])
    main, branch = (torch.from_numpy(vectors[name]) for name in ("logits", "logits_context"))
    for form in ("contrastive", "augmentive"):
        method = HalTrapper(alpha=float(vectors["alpha"]), beta=float(vectors["beta"]), form=form)
        yield differ(f"out_{form}", method.combine(main, branch, step=1)[0], vectors[f"out_{form}"])


def check_search(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2.1: parsing replies, external expansion, and choosing candidates."""
    expansion, synonyms = vectors["expansion"], vectors["synonyms"]
    vocabulary = Vocabulary({name: synonyms.get(name, ()) for name in expansion["vocabulary"]})
    for direction, reply in expansion["replies"].items():
        imagined, reason = parse_reply(reply) or (None, None)
        yield same(f"parsed_{direction}", {"imagination": imagined, "reason": reason}, expansion["parsed"][direction])
    yield same("ee_scores", score_expansion(expansion["replies"].values(), vocabulary), expansion["ee_scores"])
    for number, case in enumerate(vectors["selection"]):
        rules = CandidateRules(case["ig_threshold"], -case["ee_threshold_signed"], case["number"], case["random_seed"])
        chosen = select(case["caption_objects"], case["ee_scores"], case["ig_cos"], vocabulary, rules)
        yield same(f"candidates_{number}", list(chosen), case["candidates"])
