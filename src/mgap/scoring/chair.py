"""CHAIR's figures from the objects that captions mention and those that are there (Rohrbach et al., 2018)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from mgap.errors import SettingError
from mgap.scoring.stats import Rate, bootstrap, share, wilson


@dataclass(frozen=True)
class ChairScore:
    """CHAIRs, CHAIRi and recall; a caption's length is never hidden."""

    captions: int
    chair_s: Rate  # captions with at least one mention of what is not there
    chair_i: Rate  # mentions of what is not there, among all mentions
    recall: Rate  # of what is there, how much is mentioned
    words: float  # of a caption, on average


def score_chair(captions: Sequence[str], mentions: Sequence[Sequence[str]], truths: Sequence[Collection[str]]) -> ChairScore:
    """`mentions` are the class names found in each caption, repeats kept; `truths` what each picture shows."""
    if not len(captions) == len(mentions) == len(truths):
        raise SettingError(f"{len(captions)} captions, {len(mentions)} mentions and {len(truths)} truths: give one of each")
    groups = np.zeros((len(captions), 4))  # of each caption: mentions, false ones, things there, things mentioned
    for row, (named, truth) in enumerate(zip(mentions, truths, strict=True)):
        groups[row] = len(named), sum(name not in truth for name in named), len(truth), len(set(named) & set(truth))
    total, _, there, _ = (int(count) for count in groups.sum(0))
    return ChairScore(
        captions=len(captions),
        chair_s=wilson(int((groups[:, 1] > 0).sum()), len(captions)),
        chair_i=bootstrap(lambda c: share(c[..., 1], c[..., 0]), groups, total),
        recall=bootstrap(lambda c: share(c[..., 3], c[..., 2]), groups, there),
        words=float(np.mean([len(caption.split()) for caption in captions])) if captions else 0.0,
    )
