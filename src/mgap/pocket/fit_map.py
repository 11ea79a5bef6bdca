"""Fits a pocket model's prior map on pairs of states along its own answers about development scenes, without labels."""

from __future__ import annotations

from mgap.decoding.model import Model
from mgap.decoding.prior_pairs import fit_prior_map
from mgap.io.progress import Progress
from mgap.pocket.benchmark import DEVELOPMENT, QUESTIONS_PER_SCENE, scenes
from mgap.pocket.figures import fit_prior
from mgap.pocket.language import DESCRIBE, ask_existence
from mgap.pocket.objects import NAMES
from mgap.pocket.scenes import render
from mgap.priors.prior_map import PriorMap
from mgap.priors.subspace import Subspace

MAX_ANSWER_TOKENS = 32


def fit_pocket_map(
    model: Model,
    prior: Subspace | None = None,
    first: int = DEVELOPMENT,
    count: int = 100,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> PriorMap:
    """Each scene is described and asked about a few things, which rotate whatever is drawn. prior=None: MGAP's prior."""
    pictures, prompts = [], []
    for index, scene in enumerate(scenes(first, count)):
        things = [NAMES[(index * QUESTIONS_PER_SCENE + n) % len(NAMES)] for n in range(QUESTIONS_PER_SCENE)]
        pictures += [render(scene)] * (QUESTIONS_PER_SCENE + 1)
        prompts += [DESCRIBE[0], *map(ask_existence, things)]
    prior = prior or fit_prior(model, batch_size=batch_size, progress=progress)
    report = None if progress is None else lambda done: progress("pairs for the map", done, len(prompts))
    return fit_prior_map(
        model, pictures, prompts, prior, max_new_tokens=MAX_ANSWER_TOKENS, batch_size=batch_size, progress=report
    )
