"""Compare the priors of two models through their vocabularies: their states share no space, but their tokens do.

Each prior becomes the span of W V over the tokens that both vocabularies spell alike, centred over these tokens; angles are
measured there. Two heads have much in common besides any prior, such as which words are rare; random directions of either
model, through its own head, show how much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.head import Head
from mgap.diagnosis.principal_angles import Overlap, orthonormal
from mgap.diagnosis.subspace_analysis import ModelComparison
from mgap.diagnosis.subspace_words import orient, spellings, word_table
from mgap.errors import BackboneMismatch, SettingError
from mgap.priors.subspace import Subspace

TOKENS_A_DIRECTION = 10  # the fewest shared tokens per direction


@dataclass(frozen=True)
class Side:
    """One model with its prior."""

    name: str
    head: Head
    basis: Tensor  # [d, K], oriented
    tokens: dict[str, int]  # by spelling; the first of those spelled alike

    @classmethod
    def of(cls, model: Backbone | HasBackbone, prior: Subspace) -> Side:
        backbone = Backbone.of(model)
        prior.require(backbone)
        head = backbone.probe_head()
        spelled = spellings(backbone.tokenizer, head.vocab_size)
        tokens = {text: token for token, text in reversed(spelled.items())}
        return cls(backbone.name, head, orient(prior.basis, prior.mean), tokens)


def compare_sides(
    one: Side, other: Side, *, draws: int = 20, seed: int = 0, progress: Callable[[int], None] | None = None
) -> ModelComparison:
    """Angles between two priors' effects on tokens; refuses vocabularies with too few tokens in common."""
    common = sorted(one.tokens.keys() & other.tokens.keys())
    ranks = one.basis.shape[1], other.basis.shape[1]
    if len(common) < TOKENS_A_DIRECTION * max(ranks):
        raise BackboneMismatch(
            f"{one.name} and {other.name} spell {len(common)} tokens alike, too few for rank {max(ranks)}: "
            f"{TOKENS_A_DIRECTION * max(ranks)} are needed; lower the rank, or compare models of one language"
        )
    spans = [_span(side, side.basis, common) for side in (one, other)]
    overlap = Overlap.of(*spans)
    if draws < 2:
        raise SettingError(f"draws={draws} must be at least 2: they have a spread")
    generator, random = torch.Generator().manual_seed(seed), []
    for draw in range(draws):
        bases = [torch.randn(side.basis.shape, generator=generator, dtype=torch.float64) for side in (one, other)]
        pair = [_span(side, orthonormal(basis), common) for side, basis in zip((one, other), bases, strict=True)]
        random.append(Overlap.of(*pair))
        if progress is not None:
            progress(draw + 1)
    units = [span / span.norm(dim=0) for span in spans]  # [tokens, K]
    inexact = [side.name for side in (one, other) if not side.head.linear]
    return ModelComparison(
        models=(one.name, other.name),
        ranks=ranks,
        tokens=len(common),
        degrees=overlap.degrees,
        largest=overlap.largest,
        shared=overlap.shared,
        chance=max(ranks) / (len(common) - 1),
        heads=fmean(pair.shared for pair in random),
        heads_spread=stdev(pair.shared for pair in random),
        heads_smallest=fmean(pair.degrees[0] for pair in random),
        cosines=tuple(map(tuple, (units[0].T @ units[1]).tolist())),
        notes=tuple(f"{name} rounds what its head reads: its words are those of unit vectors" for name in inexact),
    )


def _span(side: Side, basis: Tensor, common: list[str]) -> Tensor:
    """W V [tokens, K] over the common tokens, centred."""
    return word_table(side.head, basis, [side.tokens[text] for text in common]).T
