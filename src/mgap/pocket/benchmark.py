"""Benchmarks of the pocket world, in the record formats of the real ones, for any seed and size.

What is popular, and what is usually seen together, is counted over the world, not over the scenes of the test.
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
from mgap.pocket.drawing import COLOURS
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import FORBIDDEN, WORLD, Scene, make_scene, scene_names
from mgap.pocket.themes import THEMES

DEVELOPMENT = 100_000  # first seed of the scenes for choosing settings,
FIT = 120_000  # for fitting what methods need, without labels,
JUDGE = 140_000  # for the plain states that departures are measured against, which no method is given,
TEST = 200_000  # for judging,
STATISTICS = 300_000  # for counting what is popular,
REPORT = 500_000  # and for reporting once what was chosen elsewhere
CALIBRATION = len(NAMES) * (len(language.EXISTENCE) + len(language.COLOUR) - 2)  # prompts for a prior, at most
COUNTS = "counts.json"  # things, and pairs of things, in so many scenes from STATISTICS on
ASKED = 6  # questions a scene, half of them about what is there


@dataclass(frozen=True)
class PocketQuestion:
    """One yes/no question about one scene."""

    scene: Scene
    text: str
    label: str  # "yes" or "no"
    name: str

    def record(self, number: int) -> dict[str, object]:
        """As POPE writes it."""
        return {"question_id": number, "image": f"pocket_{self.scene.seed}.png", "text": self.text, "label": self.label}


@dataclass(frozen=True)
class ColourQuestion:
    """Which colour a thing has that is there once, in a colour that it does not have in nature."""

    scene: Scene
    text: str
    name: str
    true: str
    usual: str


def scenes(first: int, count: int, *, held_out: bool = False) -> Iterator[Scene]:
    """Scenes of consecutive seeds; those kept for outside checks, and those of the training, are refused."""
    seeds = range(first, first + count)
    if seeds.stop > FORBIDDEN.start and seeds.start < FORBIDDEN.stop:
        raise SettingError(f"seeds {FORBIDDEN.start} to {FORBIDDEN.stop - 1} are kept for outside checks: choose others")
    if seeds.stop > FIRST_TRAINING_SEED:
        raise SettingError(f"seeds from {FIRST_TRAINING_SEED} on were trained on: choose smaller ones")
    for seed in seeds:
        yield make_scene(seed, held_out=held_out)


def pope(split: str, first: int = TEST, count: int = 500, *, held_out: bool = False) -> Iterator[PocketQuestion]:
    """Pocket-POPE: for each of `count` scenes three things that are there and three that are not.

    Scenes with fewer than three kinds of things are passed over, as POPE passes over pictures.
    The absent ones are drawn at random, or are the most frequent of the world (popular), or those most often seen together
    with what is there (adversarial).
    """
    if split not in SPLITS:
        raise SettingError(f"unknown split {split!r}: choose from {', '.join(SPLITS)}")
    found = (scene for seed in itertools.count(first) for scene in scenes(seed, 1, held_out=held_out))
    for scene in itertools.islice((scene for scene in found if len(scene.names) >= ASKED // 2), count):
        rng = np.random.default_rng([WORLD, scene.seed, 3])
        present = [scene.names[int(i)] for i in rng.permutation(len(scene.names))[: ASKED // 2]]
        absent = _absent(scene, split, rng)[: len(present)]
        for there, not_there in zip(present, absent, strict=True):
            yield PocketQuestion(scene, language.ask_existence(there), "yes", there)
            yield PocketQuestion(scene, language.ask_existence(not_there), "no", not_there)


def chair_truth(first: int = TEST, count: int = 500) -> dict[str, dict[str, list[str]]]:
    """Pocket-CHAIR's ground truth by scene, as the package keeps COCO's: what is drawn is exact, so captions add nothing."""
    return {str(s.seed): {"segmentation": sorted(s.names), "caption_only": []} for s in scenes(first, count)}


def odd_colours(first: int = TEST, count: int = 4000, *, held_out: bool = False) -> Iterator[ColourQuestion]:
    """The blue bananas of so many scenes; about one scene in seven has one."""
    for scene in scenes(first, count, held_out=held_out):
        for name in scene.names:
            if name == "person" or scene.count(name) > 1:  # people have no colour
                continue
            colour = scene.only(name).colour
            if colour not in dict(OBJECTS[name].colours):
                yield ColourQuestion(scene, language.ask_colour(name), name, colour, OBJECTS[name].usual_colour)


def calibration_prompts(count: int = 50) -> list[str]:
    """Questions of existence for fitting a prior, in the wordings that no test uses, then of colour; always the same."""
    if not 0 <= count <= CALIBRATION:
        raise SettingError(f"{count} calibration prompts: there are {CALIBRATION}")
    asked = [language.ask_existence(name, wording) for wording in range(1, len(language.EXISTENCE)) for name in NAMES]
    asked = [asked[int(i)] for i in np.random.default_rng([WORLD, 7]).permutation(len(asked))]
    asked += [language.ask_colour(name, wording) for wording in range(1, len(language.COLOUR)) for name in NAMES]
    return asked[:count]


def every_calibration_prompt() -> list[str]:
    return calibration_prompts(CALIBRATION)


def amber(
    first: int = TEST, count: int = 500, *, held_out: bool = False
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Pocket-AMBER: queries and annotations, as AMBER writes them; the generative ones first.

    Kinds: a request to describe; whether a single thing has a colour (state), how many there are (number), what is typical of
    the place and absent (hallucination), and how two things stand to each other (relation). Yes and no are asked in pairs, but
    for hallucination, where the truth is always no.
    """
    shown = list(scenes(first, count, held_out=held_out))
    asked: list[tuple[Scene, str, str, dict[str, object]]]
    asked = [(s, language.DESCRIBE[1], "generative", {"truth": list(s.names), "hallu": _typical_absent(s)}) for s in shown]
    for scene in shown:
        rng = np.random.default_rng([WORLD, scene.seed, 5])
        asked += [(scene, text, f"discriminative-{kind}", {"truth": truth}) for text, kind, truth in _discriminate(scene, rng)]
    queries, annotations = [], []
    for number, (scene, text, kind, truth) in enumerate(asked, start=1):
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
    return sorted(absent, key=lambda name: -sum(together[frozenset((name, seen))] for seen in scene.names))


@lru_cache(maxsize=1)
def world_statistics() -> tuple[Counter[str], Counter[frozenset[str]]]:
    """In how many scenes each thing, and each pair of things, is found, as `count_world` has counted them once."""
    counts = json.loads((Path(__file__).parent / COUNTS).read_text(encoding="utf-8"))
    together = {
        frozenset((name, other)): number for name, others in counts["pairs"].items() for other, number in others.items()
    }
    return Counter(counts["things"]), Counter(together)


def count_world(count: int = 4000) -> tuple[Counter[str], Counter[frozenset[str]]]:
    """The same from the scenes themselves: seconds of drawing lots."""
    frequency: Counter[str] = Counter()
    together: Counter[frozenset[str]] = Counter()
    for seed in range(STATISTICS, STATISTICS + count):
        names = scene_names(seed)
        frequency.update(names)
        together.update(frozenset((a, b)) for i, a in enumerate(names) for b in names[i + 1 :])
    return frequency, together


def counts_text(frequency: Counter[str], together: Counter[frozenset[str]]) -> str:
    """What COUNTS holds: to be written again, as `counts_text(*count_world())`, when the world changes."""
    pairs: dict[str, dict[str, int]] = {}
    for name, other in sorted(map(sorted, together)):
        pairs.setdefault(name, {})[other] = together[frozenset((name, other))]
    return json.dumps({"things": dict(sorted(frequency.items())), "pairs": pairs}, indent=0) + "\n"
