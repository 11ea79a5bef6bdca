"""Benchmarks of the pocket world, in the record formats of the real ones, for any seed and size.

What is popular, and what is usually seen together, is counted over the world, not over the scenes of the test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mgap.errors import SettingError
from mgap.pocket import language
from mgap.pocket.corpus import FIRST_TRAINING_SEED
from mgap.pocket.objects import NAMES
from mgap.pocket.scenes import FORBIDDEN, WORLD, Scene, make_scene

SPLITS = ("random", "popular", "adversarial")
DEVELOPMENT, TEST, STATISTICS = (
    100_000,
    200_000,
    300_000,
)  # first seeds of scenes for choosing settings, for judging, for counting
ASKED = 6  # questions a scene, half of them about what is there


@dataclass(frozen=True)
class Question:
    """One yes/no question about one scene."""

    scene: Scene
    text: str
    label: str  # "yes" or "no"
    name: str

    def record(self, number: int) -> dict[str, object]:
        """As POPE writes it."""
        return {"question_id": number, "image": f"pocket_{self.scene.seed}.png", "text": self.text, "label": self.label}


def scenes(first: int, count: int, *, held_out: bool = False) -> Iterator[Scene]:
    """Scenes of consecutive seeds; those kept for outside checks, and those of the training, are refused."""
    seeds = range(first, first + count)
    if seeds.stop > FORBIDDEN.start and seeds.start < FORBIDDEN.stop:
        raise SettingError(f"seeds {FORBIDDEN.start} to {FORBIDDEN.stop - 1} are kept for outside checks: choose others")
    if seeds.stop > FIRST_TRAINING_SEED:
        raise SettingError(f"seeds from {FIRST_TRAINING_SEED} on were trained on: choose smaller ones")
    for seed in seeds:
        yield make_scene(seed, held_out=held_out)


def pope(split: str, first: int = TEST, count: int = 500, *, held_out: bool = False) -> Iterator[Question]:
    """Pocket-POPE: for each scene three things that are there and three that are not.

    The absent ones are drawn at random, or are the most frequent of the world (popular), or those most often seen together
    with what is there (adversarial).
    """
    if split not in SPLITS:
        raise SettingError(f"unknown split {split!r}: choose from {', '.join(SPLITS)}")
    for scene in scenes(first, count, held_out=held_out):
        rng = np.random.default_rng([WORLD, scene.seed, 3])
        present = [scene.names[int(i)] for i in rng.permutation(len(scene.names))[: ASKED // 2]]
        absent = _absent(scene, split, rng)[: len(present)]
        for there, not_there in zip(present, absent, strict=True):
            yield Question(scene, language.ask_existence(there), "yes", there)
            yield Question(scene, language.ask_existence(not_there), "no", not_there)


def _absent(scene: Scene, split: str, rng: np.random.Generator) -> list[str]:
    absent = [name for name in NAMES if name not in scene.names]
    if split == "random":
        return [absent[int(i)] for i in rng.permutation(len(absent))]
    frequency, together = world_statistics()
    if split == "popular":
        return sorted(absent, key=lambda name: -frequency[name])
    return sorted(absent, key=lambda name: -sum(together[frozenset((name, seen))] for seen in scene.names))


@lru_cache(maxsize=1)
def world_statistics(count: int = 4000) -> tuple[Counter[str], Counter[frozenset[str]]]:
    """In how many scenes each thing, and each pair of things, is found."""
    frequency: Counter[str] = Counter()
    together: Counter[frozenset[str]] = Counter()
    for scene in scenes(STATISTICS, count):
        names = scene.names
        frequency.update(names)
        together.update(frozenset((a, b)) for i, a in enumerate(names) for b in names[i + 1 :])
    return frequency, together
