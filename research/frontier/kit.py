"""What methods are fitted with, and the plain states that departures are measured against; their scenes have no other use.

`Kit` fits what methods need on questions without a picture and on scenes from seed FIT on, unlabelled except for ASD and Nullu.
Departures are measured against plain states of scenes from seed JUDGE on, which no method ever gets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from mgap.benchmarks.pope.questions import SPLITS
from mgap.decoding.answer_states import answer_states
from mgap.decoding.model import Model
from mgap.decoding.prior_pairs import BlindReader
from mgap.io.progress import Progress, report_progress
from mgap.pocket.benchmark import FIT, JUDGE
from mgap.pocket.figures import fit_prior
from mgap.pocket.fit_bank import KINDS, MAX_ANSWER_TOKENS, collect, fit_bank, rows_of
from mgap.pocket.fit_map import fit_pocket_map
from mgap.pocket.fit_null_space import fit_null_space
from mgap.pocket.fit_steering import fit_steering
from mgap.pocket.scenes import render
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.priors.null_space import NullSpace
from mgap.priors.prior_map import PriorMap
from mgap.priors.steering import Steering
from mgap.priors.subspace import Subspace
from mgap.run.first_words import encode_rows
from mgap.types import Decoding

Made = TypeVar("Made")


class Kit:
    """Priors, maps and banks of one model, each fitted on first use and cached. To add one, write a method around `keep`."""

    def __init__(self, model: Model, *, scenes: int = 400, batch_size: int = 64, progress: Progress | None = None) -> None:
        self.model, self.scenes, self.batch_size, self.progress = model, scenes, batch_size, progress
        self._answer_scenes = max(8, scenes // 4)  # scenes for fits along answers, which give many states each
        self._made: dict[Hashable, Any] = {}

    def keep(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def prior(self, null_image: str, rank: int = 5) -> Subspace:
        """A prior of rank 1 to 5, fitted on questions that no test asks."""
        options: dict[str, Any] = {"batch_size": self.batch_size, "progress": self.progress}
        prior = self.keep(("prior", null_image), lambda: fit_prior(self.model, null_image, **options))
        return self.keep(("prior", null_image, rank), lambda: prior.truncate(rank))

    def prior_map(self, null_image: str, rank: int = 5) -> PriorMap:
        """Predicts from a state where the prompt alone would put it in such a prior."""
        prior = self.prior(null_image, rank)
        options: dict[str, Any] = {"batch_size": self.batch_size, "progress": self.progress}
        return self.keep(
            ("map", null_image, rank), lambda: fit_pocket_map(self.model, prior, FIT, self._answer_scenes, **options)
        )

    def caption_prior(self, null_image: str, rank: int) -> Subspace:
        """A prior of blind states along plain captions."""
        return self.keep(("caption prior", null_image, rank), lambda: self._caption_prior(null_image, rank))

    def _caption_prior(self, null_image: str, rank: int) -> Subspace:
        states: list[Tensor] = []
        rows = rows_of("captions", FIT, self._answer_scenes)
        with answer_states(self.model, BlindReader(null_image=null_image), Decoding(max_new_tokens=MAX_ANSWER_TOKENS)) as read:
            for inputs, done in encode_rows(self.model, rows, render, self.batch_size):
                states += [answer.used.cpu() for answer in read(inputs)]
                report_progress(self.progress, "blind captions", done, len(rows))
        return replace(Subspace.from_states(torch.cat(states), rank), identity=self.model.backbone.identity)

    def steering(self) -> Steering:
        """Vectors from true to invented things, of the model's own captions, labelled by the truth."""
        options: dict[str, Any] = {"batch_size": self.batch_size, "progress": self.progress}
        return self.keep("steering", lambda: fit_steering(self.model, FIT, self.scenes, **options))

    def null_space(self, rank: int) -> NullSpace:
        """Up to 16 directions from true captions to the same with a lie."""
        count = max(40, self.scenes)  # six in ten give a pair
        space = self.keep("null space", lambda: fit_null_space(self.model, FIT, count, rank=16, progress=self.progress))
        return self.keep(("null space", rank), lambda: space.truncate(rank))

    def bank(self, *kinds: str) -> Bank:
        """Plain states of every token of answers to questions, to caption prompts, or (no kind) to both."""
        options: dict[str, Any] = {"batch_size": self.batch_size, "progress": self.progress}
        return self.keep(("bank", kinds or KINDS), lambda: fit_bank(self.model, kinds or KINDS, FIT, self.scenes, **options))


@dataclass(frozen=True)
class Judges:
    """Manifolds of plain states that departures are measured against, of the same kind as the states measured."""

    first: Manifold  # of the first words of answers to adversarial questions
    along: Manifold  # of every token of captions

    @classmethod
    def of(cls, model: Model, count: int = 400, *, batch_size: int = 64, progress: Progress | None = None) -> Judges:
        """From `count` scenes each."""
        device = model.backbone.device

        def manifold(kind: str, max_new_tokens: int) -> Manifold:
            rows = rows_of(kind, JUDGE, count, SPLITS[-1:])
            options: dict[str, Any] = {"batch_size": batch_size, "label": f"{kind} to judge by", "progress": progress}
            return Manifold.of(collect(model, rows, max_new_tokens, **options), device=device)

        return cls(manifold("questions", 1), manifold("captions", MAX_ANSWER_TOKENS))
