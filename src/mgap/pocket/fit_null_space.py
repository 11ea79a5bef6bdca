"""Fits a pocket model's null space (Nullu's HalluSpace) on true captions of development scenes, and on the same with a lie."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from mgap.decoding.model import Model
from mgap.io.progress import Progress
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.corpus import choose_extra
from mgap.pocket.language import DESCRIBE, caption
from mgap.pocket.objects import with_article
from mgap.pocket.scenes import WORLD, render
from mgap.priors.null_space import RANK, CaptionPair, NullSpace


def fit_null_space(
    model: Model, first: int = DEVELOPMENT, count: int = 300, *, rank: int = RANK, progress: Progress | None = None
) -> NullSpace:
    """From the pairs of `count` scenes, of which about six in ten have one."""
    pairs = list(caption_pairs(first, count))
    report = None if progress is None else lambda done: progress("pairs of captions", done, len(pairs))
    return NullSpace.fit(model, pairs, rank, progress=report)


def caption_pairs(first: int, count: int) -> Iterator[CaptionPair]:
    """A caption of each scene, and the same with one thing more, which is typical of the place and not drawn.

    Scenes in which one thing more makes another sentence, or other words, are left out.
    """
    for scene in scenes(first, count):
        extra = choose_extra(scene, np.random.default_rng([WORLD, scene.seed, 8]))
        if extra is None:
            continue
        true, false = (caption(scene, lie, np.random.default_rng([WORLD, scene.seed, 9])) for lie in (None, extra))
        if set(_words(false) - _words(true)) <= {*_words(with_article(extra)), "and"} and not _words(true) - _words(false):
            yield CaptionPair(render(scene), DESCRIBE[0], true, false)


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))
