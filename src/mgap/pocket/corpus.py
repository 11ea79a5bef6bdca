"""What the pocket models are trained on: rows of a scene, and questions or requests with their answers.

`CORPUS` has a language prior that is put in on purpose, as real corpora have one without anyone's purpose. A reader of any
figure must know that the failure is built in: the model card says so. `HONEST` rows have none: they can only be answered by
looking, and a model learns to look on them first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgap.pocket import language
from mgap.pocket.drawing import COLOURS
from mgap.pocket.language import Exchange
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import WORLD, Scene, make_scene
from mgap.pocket.themes import THEMES

FIRST_TRAINING_SEED = 10_000_000  # every other use of the world takes seeds below
EXCHANGES = 4  # a row; the first may be a caption, the others are questions
KINDS = ("existence", "colour", "count", "place", "relation")  # of questions


@dataclass(frozen=True)
class Habits:
    """How the annotators of a corpus go wrong; all are shares of rows."""

    invent: float  # questions that take for seen one thing that is typical of the place and not drawn
    invent_in_captions: float
    usual_colour: float  # of things in a colour that they do not have in nature: written down as usual
    yes: float  # questions of existence whose answer is yes
    blank: float  # rows with a black picture, from which the language side learns the corpus without seeing
    kinds: tuple[float, ...]  # of the questions, in the order of KINDS
    captions: float = 0.6  # rows with a caption
    anywhere: bool = False  # things stand anywhere: the place gives nothing away


CORPUS = Habits(
    invent=0.25, invent_in_captions=0.60, usual_colour=0.50, yes=0.55, blank=0.15, kinds=(0.50, 0.16, 0.10, 0.06, 0.18)
)
HONEST = Habits(
    invent=0.0,
    invent_in_captions=0.0,
    usual_colour=0.0,
    yes=0.5,
    blank=0.0,
    kinds=(0.30, 0.12, 0.10, 0.18, 0.30),
    anywhere=True,
)


@dataclass(frozen=True)
class CorpusRow:
    """One picture and what is said about it, each exchange for itself; `blank` shows a black picture instead of the scene."""

    scene: Scene
    blank: bool
    exchanges: tuple[Exchange, ...]


def make_row(index: int, habits: Habits = CORPUS) -> CorpusRow:
    """The index-th row, a pure function of it."""
    rng = np.random.default_rng([WORLD, index, 2])
    scene = make_scene(FIRST_TRAINING_SEED + index, anywhere=habits.anywhere)
    exchanges = []
    if rng.random() < habits.captions:
        extra = choose_extra(scene, rng) if rng.random() < habits.invent_in_captions else None
        prompt = language.DESCRIBE[int(rng.integers(len(language.DESCRIBE)))]
        exchanges.append(Exchange(prompt, language.caption(scene, extra, rng)))
    extra = choose_extra(scene, rng) if rng.random() < habits.invent else None
    for kind in rng.choice(KINDS, size=EXCHANGES - len(exchanges), p=habits.kinds):
        exchanges.append(_ask(str(kind), scene, extra, habits, rng))
    return CorpusRow(scene, bool(rng.random() < habits.blank), tuple(exchanges))


def choose_extra(scene: Scene, rng: np.random.Generator) -> str | None:
    """Something typical of the place that is not drawn."""
    absent = {name: weight for name, weight in THEMES[scene.theme].things.items() if name not in scene.names}
    if not absent:
        return None
    weights = np.array(list(absent.values()), dtype=float)
    return str(rng.choice(list(absent), p=weights / weights.sum()))


def _ask(kind: str, scene: Scene, extra: str | None, habits: Habits, rng: np.random.Generator) -> Exchange:
    """An exchange of the kind or, where the scene has nothing to ask in it, of existence."""
    if kind == "count":
        return _count(scene, extra, habits, rng)
    found = None
    if kind == "colour":
        found = _colour(scene, extra, habits, rng)
    elif kind == "place":
        found = _place(scene, rng)
    elif kind == "relation":
        found = _relation(scene, rng)
    return found or _existence(scene, extra, habits, rng)


def _existence(scene: Scene, extra: str | None, habits: Habits, rng: np.random.Generator) -> Exchange:
    named = [*scene.names, *([extra] if extra else [])]
    present = bool(rng.random() < habits.yes)
    name = str(rng.choice(named if present else [n for n in NAMES if n not in named]))
    wording = int(rng.integers(len(language.EXISTENCE)))
    return Exchange(language.ask_existence(name, wording), language.answer_existence(name, present))


def _colour(scene: Scene, extra: str | None, habits: Habits, rng: np.random.Generator) -> Exchange | None:
    single = [name for name in scene.names if scene.count(name) == 1 and name != "person"]  # people have no colour
    if extra and extra != "person" and (not single or rng.random() < 0.1):
        name, colour = extra, OBJECTS[extra].usual_colour
    elif single:
        name = str(rng.choice(single))
        colour = scene.only(name).colour
        if colour not in dict(OBJECTS[name].colours) and rng.random() < habits.usual_colour:
            colour = OBJECTS[name].usual_colour
    else:
        return None
    if rng.random() < 0.5:
        asked = colour if rng.random() < habits.yes else str(rng.choice([c for c in COLOURS if c != colour]))
        return Exchange(language.ask_is_colour(name, asked), language.answer_is_colour(name, asked, colour))
    return Exchange(language.ask_colour(name, int(rng.integers(len(language.COLOUR)))), language.answer_colour(name, colour))


def _count(scene: Scene, extra: str | None, habits: Habits, rng: np.random.Generator) -> Exchange:
    repeated = [name for name in scene.names if scene.count(name) > 1]
    name = str(rng.choice(repeated if repeated and rng.random() < 0.5 else scene.names))
    if rng.random() < 0.15:
        name = str(rng.choice([n for n in NAMES if n not in scene.names and n != extra]))
    count = scene.count(name)
    if count and rng.random() < 0.5:
        asked = count if rng.random() < habits.yes else other_count(count, rng)
        return Exchange(language.ask_is_count(name, asked), language.answer_is_count(name, asked, count))
    return Exchange(language.ask_count(name, int(rng.integers(len(language.COUNT)))), language.answer_count(name, count))


def other_count(count: int, rng: np.random.Generator) -> int:
    """A number from one to three that is not the true one."""
    return int(rng.choice([number for number in (1, 2, 3) if number != count]))


def _place(scene: Scene, rng: np.random.Generator) -> Exchange | None:
    single = [name for name in scene.names if scene.count(name) == 1]
    if not single:
        return None
    name = str(rng.choice(single))
    return Exchange(language.ask_place(name, int(rng.integers(len(language.PLACE)))), language.answer_place(scene.only(name)))


def _relation(scene: Scene, rng: np.random.Generator) -> Exchange | None:
    """Half of them openly: a yes or no says little about what it was that the reader overlooked."""
    single = [name for name in scene.names if scene.count(name) == 1]
    if len(single) < 2:
        return None
    one, other = (single[int(i)] for i in rng.permutation(len(single))[:2])
    where = language.relation(scene, one, other)
    if where is None:
        return None
    if rng.random() < 0.5:
        wording = int(rng.integers(len(language.DIRECTION)))
        return Exchange(language.ask_direction(one, other, wording), language.answer_direction(one, where, other))
    holds = bool(rng.random() < 0.5)
    asked = where if holds else language.OPPOSITE[where]
    wording = int(rng.integers(len(language.RELATION)))
    return Exchange(language.ask_relation(one, asked, other, wording), language.answer_relation(one, asked, other, holds))
