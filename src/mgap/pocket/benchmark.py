"""Benchmarks of the pocket world, in the record formats of the real ones, for any seed and size.

Frequencies and co-occurrences of objects are counted over the world, not over the test scenes.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import SettingError
from mgap.pocket import language
from mgap.pocket.corpus import FIRST_TRAINING_SEED, other_count
from mgap.pocket.difficulty import USUAL, Difficulty
from mgap.pocket.drawing import COLOURS
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import FORBIDDEN, WORLD, Scene, make_scene, scene_names
from mgap.pocket.themes import THEMES

# First seeds of the scenes for each purpose.
DEVELOPMENT = 100_000  # choosing settings
FIT = 120_000  # fitting what methods need, without labels
JUDGE = 140_000  # plain states that departures are measured against; no method gets them
TEST = 200_000  # evaluation
STATISTICS = 300_000  # counting frequencies
REPORT = 500_000  # reporting once, with settings chosen elsewhere
CALIBRATION = len(NAMES) * (len(language.EXISTENCE) + len(language.COLOUR) - 2)  # prompts for a prior, at most
COUNTS = "counts.json"  # how many scenes from STATISTICS on have each object and each pair
QUESTIONS_PER_SCENE = 6  # questions per scene; half ask about objects that are present


@dataclass(frozen=True)
class PocketQuestion:
    """One yes/no question about one scene."""

    scene: Scene
    text: str
    label: str  # "yes" or "no"
    name: str

    def record(self, number: int) -> dict[str, object]:
        """In POPE's format."""
        return {"question_id": number, "image": f"pocket_{self.scene.seed}.png", "text": self.text, "label": self.label}


@dataclass(frozen=True)
class ColourQuestion:
    """A question about the colour of the only object of its kind, which is drawn in an unnatural colour."""

    scene: Scene
    text: str
    name: str
    true: str
    usual: str


def scenes(first: int, count: int, *, held_out: bool = False, difficulty: Difficulty = USUAL) -> Iterator[Scene]:
    """Scenes of consecutive seeds. Raises on seeds used in training or reserved for outside checks."""
    seeds = range(first, first + count)
    if seeds.stop > FORBIDDEN.start and seeds.start < FORBIDDEN.stop:
        raise SettingError(f"seeds {FORBIDDEN.start} to {FORBIDDEN.stop - 1} are kept for outside checks: choose others")
    if seeds.stop > FIRST_TRAINING_SEED:
        raise SettingError(f"seeds from {FIRST_TRAINING_SEED} on were trained on: choose smaller ones")
    for seed in seeds:
        yield make_scene(seed, held_out=held_out, difficulty=difficulty)


def pope(
    split: str, first: int = TEST, count: int = 500, *, held_out: bool = False, difficulty: Difficulty = USUAL
) -> Iterator[PocketQuestion]:
    """Pocket-POPE: for each of `count` scenes three objects that are present and three that are absent.

    Scenes with fewer than three kinds of objects are skipped, as POPE skips such pictures. Absent objects are drawn at random,
    or are the most frequent in the world (popular), or co-occur most often with those present (adversarial).
    """
    if split not in SPLITS:
        raise SettingError(f"unknown split {split!r}: choose from {', '.join(SPLITS)}")
    candidates = (
        scene for seed in itertools.count(first) for scene in scenes(seed, 1, held_out=held_out, difficulty=difficulty)
    )
    for scene in itertools.islice((scene for scene in candidates if len(scene.names) >= QUESTIONS_PER_SCENE // 2), count):
        rng = np.random.default_rng([WORLD, scene.seed, 3])
        present = [scene.names[int(i)] for i in rng.permutation(len(scene.names))[: QUESTIONS_PER_SCENE // 2]]
        absent = _absent(scene, split, rng)[: len(present)]
        for one, other in zip(present, absent, strict=True):
            yield PocketQuestion(scene, language.ask_existence(one), "yes", one)
            yield PocketQuestion(scene, language.ask_existence(other), "no", other)


def chair_truth(first: int = TEST, count: int = 500) -> dict[str, dict[str, list[str]]]:
    """Pocket-CHAIR's ground truth by scene, in the format of COCO's. The drawing is exact, so captions add nothing."""
    return {str(s.seed): {"segmentation": sorted(s.names), "caption_only": []} for s in scenes(first, count)}


def odd_colours(
    first: int = TEST, count: int = 4000, *, held_out: bool = False, difficulty: Difficulty = USUAL
) -> Iterator[ColourQuestion]:
    """Questions about objects in unnatural colours, such as blue bananas; about one scene in seven has one."""
    for scene in scenes(first, count, held_out=held_out, difficulty=difficulty):
        for name in scene.names:
            if name == "person" or scene.count(name) > 1:  # people have no colour
                continue
            colour = scene.only(name).colour
            if colour not in dict(OBJECTS[name].colours):
                yield ColourQuestion(scene, language.ask_colour(name), name, colour, OBJECTS[name].usual_colour)


def calibration_prompts(count: int = 50) -> list[str]:
    """Prompts for fitting a prior, always the same: existence, then colour questions, in wordings that no test uses."""
    if not 0 <= count <= CALIBRATION:
        raise SettingError(f"{count} calibration prompts: there are {CALIBRATION}")
    prompts = [language.ask_existence(name, wording) for wording in range(1, len(language.EXISTENCE)) for name in NAMES]
    prompts = [prompts[int(i)] for i in np.random.default_rng([WORLD, 7]).permutation(len(prompts))]
    prompts += [language.ask_colour(name, wording) for wording in range(1, len(language.COLOUR)) for name in NAMES]
    return prompts[:count]


def every_calibration_prompt() -> list[str]:
    return calibration_prompts(CALIBRATION)


def amber(
    first: int = TEST, count: int = 500, *, held_out: bool = False, difficulty: Difficulty = USUAL
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Pocket-AMBER: queries and annotations in AMBER's format, generative ones first.

    Kinds: a request to describe; the colour of a single object (state); how many there are (number); absent objects typical of
    the theme (hallucination); the relation of two objects (relation). Yes and no come in pairs, except for hallucination, where
    the truth is always no. Relations are those of the picture: where a difficulty brings two objects close together, none is
    asked about.
    """
    shown = list(scenes(first, count, held_out=held_out, difficulty=difficulty))
    items: list[tuple[Scene, str, str, dict[str, object]]]
    items = [(s, language.DESCRIBE[1], "generative", {"truth": list(s.names), "hallu": _typical_absent(s)}) for s in shown]
    for scene in shown:
        rng = np.random.default_rng([WORLD, scene.seed, 5])
        items += [(scene, text, f"discriminative-{kind}", {"truth": truth}) for text, kind, truth in _discriminate(scene, rng)]
    queries, annotations = [], []
    for number, (scene, text, kind, truth) in enumerate(items, start=1):
        kind = "relation" if (kind, truth["truth"]) == ("discriminative-relation", "no") else kind  # AMBER's own naming
        queries.append({"id": number, "image": f"pocket_{scene.seed}.png", "query": text})
        annotations.append({"id": number, "type": kind, **truth})
    return queries, annotations


def _discriminate(scene: Scene, rng: np.random.Generator) -> Iterator[tuple[str, str, str]]:
    """(question, kind, truth) of one scene."""
    single = [name for name in scene.names if scene.count(name) == 1]
    coloured = [name for name in single if name != "person"]
    if coloured:
        name = str(rng.choice(coloured))
        colour = scene.only(name).colour
        yield language.ask_is_colour(name, colour), "attribute-state", "yes"
        yield language.ask_is_colour(name, str(rng.choice([c for c in COLOURS if c != colour]))), "attribute-state", "no"
    name = str(rng.choice(scene.names))
    number = scene.count(name)
    if number <= 3:
        yield language.ask_is_count(name, number), "attribute-number", "yes"
        yield language.ask_is_count(name, other_count(number, rng)), "attribute-number", "no"
    for absent in _typical_absent(scene)[:3]:
        yield language.ask_existence(absent), "hallucination", "no"
    if len(single) >= 2 and (where := language.relation(scene, single[0], single[1])) is not None:
        yield language.ask_relation(single[0], where, single[1]), "relation", "yes"
        yield language.ask_relation(single[0], language.OPPOSITE[where], single[1]), "relation", "no"


def _typical_absent(scene: Scene) -> list[str]:
    things = THEMES[scene.theme].things
    return sorted((name for name in things if name not in scene.names), key=lambda name: -things[name])[:5]


def _absent(scene: Scene, split: str, rng: np.random.Generator) -> list[str]:
    absent = [name for name in NAMES if name not in scene.names]
    if split == "random":
        return [absent[int(i)] for i in rng.permutation(len(absent))]
    frequency, together = world_statistics()
    if split == "popular":
        return sorted(absent, key=lambda name: -frequency[name])
    return sorted(absent, key=lambda name: -sum(together[frozenset((name, other))] for other in scene.names))


@lru_cache(maxsize=1)
def world_statistics() -> tuple[Counter[str], Counter[frozenset[str]]]:
    """The number of scenes with each object and with each pair of objects, as counted once by `count_world`."""
    counts = json.loads((Path(__file__).parent / COUNTS).read_text(encoding="utf-8"))
    together = {
        frozenset((name, other)): number for name, others in counts["pairs"].items() for other, number in others.items()
    }
    return Counter(counts["things"]), Counter(together)


def count_world(count: int = 4000) -> tuple[Counter[str], Counter[frozenset[str]]]:
    """Count the same from the scenes themselves, which takes seconds."""
    frequency: Counter[str] = Counter()
    together: Counter[frozenset[str]] = Counter()
    for seed in range(STATISTICS, STATISTICS + count):
        names = scene_names(seed)
        frequency.update(names)
        together.update(frozenset((a, b)) for i, a in enumerate(names) for b in names[i + 1 :])
    return frequency, together


def counts_text(frequency: Counter[str], together: Counter[frozenset[str]]) -> str:
    """The content of COUNTS. Write it again, as `counts_text(*count_world())`, when the world changes."""
    pairs: dict[str, dict[str, int]] = {}
    for name, other in sorted(map(sorted, together)):
        pairs.setdefault(name, {})[other] = together[frozenset((name, other))]
    return json.dumps({"things": dict(sorted(frequency.items())), "pairs": pairs}, indent=0) + "\n"
