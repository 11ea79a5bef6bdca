"""What methods are fitted on, and what their states are judged against: plain answers about scenes of no other use.

Methods are given what `Kit` makes, from questions without a picture and from unlabelled scenes from FIT on. Departures are
measured against other plain states, of scenes from JUDGE on, which no method is ever given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from PIL import Image

from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.pocket.benchmark import FIT, JUDGE, SPLITS, pope, scenes
from mgap.pocket.comparison import LONGEST
from mgap.pocket.figures import fit_prior
from mgap.pocket.first_words import Progress, Row
from mgap.pocket.language import DESCRIBE
from mgap.pocket.scenes import render
from mgap.states.bank import Bank
from mgap.states.departure import Manifold
from mgap.states.subspace import Subspace

Made = TypeVar("Made")

KINDS = ("questions", "captions")  # of prompts that plain answers are collected to


class Kit:
    """For one model. A thing is made when it is first asked for, and kept: add one as a method around `keep`."""

    def __init__(self, model: Model, *, scenes: int = 400, batch_size: int = 64, progress: Progress | None = None) -> None:
        self.model, self.scenes, self.batch_size, self.progress = model, scenes, batch_size, progress
        self._made: dict[Hashable, Any] = {}

    def keep(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def prior(self, null_image: str, rank: int = 5) -> Subspace:
        """Of the questions that no test asks; rank 1 to 5."""
        how: dict[str, Any] = {"batch_size": self.batch_size, "progress": self.progress}
        prior = self.keep(("prior", null_image), lambda: fit_prior(self.model, null_image, **how))
        return self.keep(("prior", null_image, rank), lambda: prior.truncate(rank))

    def bank(self, *kinds: str) -> Bank:
        """Plain states of every token of answers to questions, to requests to describe, or to both; no kind: of both."""
        rows = [row for kind in kinds or KINDS for row in rows_of(kind, FIT, self.scenes)]
        return self.keep(
            ("bank", kinds or KINDS),
            lambda: collect(self.model, rows, LONGEST, batch_size=self.batch_size, progress=self.progress),
        )


def rows_of(kind: str, first: int, count: int, splits: Sequence[str] = SPLITS) -> list[Row]:
    """The yes/no questions about so many scenes, each once, or a request to describe each; scenes one after the other."""
    if kind == "captions":
        return [(scene, DESCRIBE[0]) for scene in scenes(first, count)]
    if kind != "questions":
        raise SettingError(f"{kind!r} is no kind of prompts: choose from {', '.join(KINDS)}")
    asked = {(q.scene, q.text): None for split in splits for q in pope(split, first, count)}
    return sorted(asked, key=lambda row: row[0].seed)


def collect(
    model: Model,
    rows: Sequence[Row],
    max_new_tokens: int,
    *,
    batch_size: int = 64,
    label: str = "plain states",
    progress: Progress | None = None,
) -> Bank:
    """The plain states along the answers to these rows. A row of the bank is a scene: other answers about it are too near."""
    drawn = lru_cache(maxsize=1)(render)
    images: Iterator[Image.Image] = (drawn(scene) for scene, _ in rows)
    told = None if progress is None else lambda done: progress(label, done, len(rows))
    prompts = [text for _, text in rows]
    how: dict[str, Any] = {"batch_size": batch_size, "max_new_tokens": max_new_tokens, "progress": told}
    bank = Bank.collect(model, images, prompts, **how)
    places = {seed: place for place, seed in enumerate(dict.fromkeys(scene.seed for scene, _ in rows))}
    shown = torch.tensor([places[scene.seed] for scene, _ in rows], dtype=torch.int32)
    return replace(bank, rows=shown[bank.rows.long()])


@dataclass(frozen=True)
class Judges:
    """What departures are measured against: states of plain decoding, of the same kind as those that are judged."""

    first: Manifold  # of the first words of answers to adversarial questions
    along: Manifold  # of every token of captions

    @classmethod
    def of(cls, model: Model, count: int = 400, *, batch_size: int = 64, progress: Progress | None = None) -> Judges:
        """From so many scenes each."""
        device = model.backbone.device

        def manifold(kind: str, max_new_tokens: int) -> Manifold:
            rows = rows_of(kind, JUDGE, count, SPLITS[-1:])
            how: dict[str, Any] = {"batch_size": batch_size, "label": f"{kind} to judge by", "progress": progress}
            return Manifold.of(collect(model, rows, max_new_tokens, **how), device=device)

        return cls(manifold("questions", 1), manifold("captions", LONGEST))
