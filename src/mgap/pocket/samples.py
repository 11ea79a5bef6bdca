"""The pocket world's benchmarks as samples of a run. Pictures are drawn on demand from the seed in their name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import BenchmarkError, SettingError
from mgap.pocket import benchmark, language
from mgap.pocket.benchmark import TEST
from mgap.pocket.difficulty import USUAL, Difficulty
from mgap.pocket.objects import NAMES
from mgap.pocket.scenes import WORLD, Scene, render
from mgap.types import Sample

AMBER_GROUPS = {
    "generative": "generative",
    "discriminative-hallucination": "existence",
    "discriminative-attribute-state": "attribute-state",
    "discriminative-attribute-number": "attribute-number",
    "discriminative-relation": "relation",
    "relation": "relation",
}
YES_NO_KINDS = {"existence": "existence", "attribute-state": "colour", "attribute-number": "count", "relation": "relation"}
KINDS = {
    "a": "",
    "g": "generative",
    "de": "existence",
    "da": "attribute",
    "dr": "relation",
}  # AMBER's kinds -> prefixes of groups


@dataclass(frozen=True)
class SceneRenderer:
    """Draws the picture of a given name."""

    held_out: bool = False
    difficulty: Difficulty = USUAL

    def __call__(self, name: str) -> Image.Image:
        return render(scene_of(name, held_out=self.held_out, difficulty=self.difficulty))


def name_of(scene: Scene) -> str:
    return f"pocket_{scene.seed}.png"


def scene_of(name: str, *, held_out: bool = False, difficulty: Difficulty = USUAL) -> Scene:
    """The scene of a picture's name."""
    match = re.fullmatch(r"pocket_(\d{1,12})\.png", name)
    if match is None:
        raise BenchmarkError(f"{name!r:.60} is no picture of the pocket world: they are called pocket_SEED.png")
    (scene,) = benchmark.scenes(int(match[1]), 1, held_out=held_out, difficulty=difficulty)
    return scene


def pope_samples(
    splits: Sequence[str] = SPLITS,
    count: int = 500,
    *,
    first: int = TEST,
    held_out: bool = False,
    difficulty: Difficulty = USUAL,
) -> Benchmark:
    """Pocket-POPE: six questions per scene and split."""
    samples = []
    for split in splits:
        asked = benchmark.pope(split, first, count, held_out=held_out, difficulty=difficulty)
        for number, question in enumerate(asked, start=1):
            sample_id = f"{split}/{number}"
            samples.append(Sample(sample_id, name_of(question.scene), question.text, split, question.label))
    return Benchmark("pocket-pope", "yesno", tuple(samples), SceneRenderer(held_out, difficulty))


def chair_samples(
    count: int = 500,
    *,
    first: int = TEST,
    held_out: bool = False,
    difficulty: Difficulty = USUAL,
    prompt: str | None = None,
) -> Benchmark:
    """Pocket-CHAIR: one caption per scene."""
    prompt = prompt or language.DESCRIBE[0]
    samples = tuple(
        Sample(str(scene.seed), name_of(scene), prompt, "captions", sorted(scene.names))
        for scene in benchmark.scenes(first, count, held_out=held_out, difficulty=difficulty)
    )
    return Benchmark(
        "pocket-chair", "captions", samples, SceneRenderer(held_out, difficulty), {"synonyms": {name: [] for name in NAMES}}
    )


def amber_samples(
    kinds: str = "a",
    count: int = 500,
    *,
    first: int = TEST,
    held_out: bool = False,
    difficulty: Difficulty = USUAL,
) -> Benchmark:
    """Pocket-AMBER: caption prompts, and yes/no questions by kind; `kinds` has AMBER's names."""
    samples = []
    asked = benchmark.amber(first, count, held_out=held_out, difficulty=difficulty)
    for query, annotation in zip(*asked, strict=True):
        group = AMBER_GROUPS[str(annotation["type"])]
        if (group != "generative") if kinds == "d" else group.startswith(KINDS[kinds]):
            truth = annotation["truth"]
            if group == "generative":
                truth = {"truth": annotation["truth"], "hallu": annotation["hallu"]}
            samples.append(Sample(str(query["id"]), str(query["image"]), str(query["query"]), group, truth))
    lexicon = {"relation": {name: [] for name in NAMES}, "safe_words": []}
    return Benchmark("pocket-amber", "amber", tuple(samples), SceneRenderer(held_out, difficulty), lexicon)


def amber_yes_no_samples(
    count: int = 500, *, first: int = TEST, held_out: bool = False, difficulty: Difficulty = USUAL
) -> Benchmark:
    """Pocket-AMBER's yes/no questions alone, by kind, to be scored as POPE's: yes is the positive class."""
    amber = amber_samples("d", count, first=first, held_out=held_out, difficulty=difficulty)
    samples = [replace(sample, group=YES_NO_KINDS[sample.group]) for sample in amber.samples]
    in_order = sorted(samples, key=lambda sample: list(YES_NO_KINDS.values()).index(sample.group))
    return replace(amber, name="pocket-amber, yes/no", task="yesno", samples=tuple(in_order), lexicon={})


def colour_samples(
    count: int = 4000, *, first: int = TEST, held_out: bool = False, difficulty: Difficulty = USUAL
) -> Benchmark:
    """Questions about the colour of oddly coloured things: the one in the picture, and the usual one."""
    samples = tuple(
        Sample(str(number), name_of(q.scene), q.text, "colours", {"thing": q.name, "true": q.true, "usual": q.usual})
        for number, q in enumerate(benchmark.odd_colours(first, count, held_out=held_out, difficulty=difficulty))
    )
    return Benchmark("pocket-colours", "colours", samples, SceneRenderer(held_out, difficulty))


def true_captions(samples: Sequence[Sample], wordings: int = 32, *, difficulty: Difficulty = USUAL) -> dict[str, list[str]]:
    """For each sample, captions that invent nothing, as an honest annotator could write them, in up to `wordings` wordings.

    They may tell where things are, so they depend on the difficulty of the pictures.
    """
    captions = {}
    for sample in samples:
        scene = scene_of(sample.image, difficulty=difficulty)
        rng = np.random.default_rng([WORLD, scene.seed, 11])
        captions[sample.id] = list(dict.fromkeys(language.caption(scene, None, rng) for _ in range(wordings)))
    return captions


class PocketWorld:
    """The pocket world for `mgap run`: POPE, CHAIR and AMBER about drawn scenes."""

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        return _read(keys, keys.scenes, TEST)

    @staticmethod
    def development(keys: RunKeys, count: int) -> Benchmark:
        return _read(keys, count, benchmark.DEVELOPMENT)

    @staticmethod
    def picture(name: str, *, held_out: bool, difficulty: Mapping[str, Any]) -> Image.Image:
        return SceneRenderer(held_out, Difficulty.of(difficulty))(name)

    @staticmethod
    def captions(keys: RunKeys, count: int) -> tuple[Benchmark, dict[str, list[str]]]:
        difficulty = Difficulty.of(keys.difficulty)
        chair = chair_samples(count, held_out=keys.held_out, difficulty=difficulty)
        return chair, true_captions(chair.samples, difficulty=difficulty)


def _read(keys: RunKeys, count: int, first: int) -> Benchmark:
    if keys.prompt is not None:
        raise SettingError(f"prompt={keys.prompt!r}: the pocket models know one way to be asked; leave it out")
    difficulty = Difficulty.of(keys.difficulty)
    if keys.asks == "pope":
        return pope_samples(keys.splits, count, first=first, held_out=keys.held_out, difficulty=difficulty)
    if keys.asks == "chair":
        return chair_samples(count, first=first, held_out=keys.held_out, difficulty=difficulty)
    if keys.asks == "amber":
        return amber_samples(keys.kinds, count, first=first, held_out=keys.held_out, difficulty=difficulty)
    raise SettingError(f"benchmark {keys.asks}: it is not part of the pocket world; give images")
