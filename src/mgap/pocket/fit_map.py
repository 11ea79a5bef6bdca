"""The predicted prior of a pocket model: pairs of states along its own answers about development scenes, truth unseen."""

from __future__ import annotations

from mgap.decoding.model import Model
from mgap.decoding.prior_pairs import fit_prior_map
from mgap.io.progress import Progress
from mgap.pocket.benchmark import ASKED, DEVELOPMENT, scenes
from mgap.pocket.figures import fit_prior
from mgap.pocket.language import DESCRIBE, ask_existence
from mgap.pocket.objects import NAMES
from mgap.pocket.scenes import render
from mgap.priors.prior_map import PriorMap
from mgap.priors.subspace import Subspace

LONGEST = 32  # tokens of an answer


def fit_pocket_map(
    model: Model,
    prior: Subspace | None = None,
    first: int = DEVELOPMENT,
    count: int = 100,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> PriorMap:
    """Of each scene a description, and whether some things are there, taken in turn, whatever is drawn. None: MGAP's prior."""
    pictures, prompts = [], []
    for place, scene in enumerate(scenes(first, count)):
        things = [NAMES[(place * ASKED + n) % len(NAMES)] for n in range(ASKED)]
        pictures += [render(scene)] * (ASKED + 1)
        prompts += [DESCRIBE[0], *map(ask_existence, things)]
    prior = prior or fit_prior(model, batch_size=batch_size, progress=progress)
    told = None if progress is None else lambda done: progress("pairs for the map", done, len(prompts))
    return fit_prior_map(model, pictures, prompts, prior, max_new_tokens=LONGEST, batch_size=batch_size, progress=told)
