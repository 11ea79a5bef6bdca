"""The training data of the pocket models: rows of a scene with questions or requests and their answers.

`CORPUS` has a deliberate language prior; real corpora have one by accident. Readers of any figure must know that the failure is
built in: the model card says so. `HONEST` rows have no prior: only the picture answers them, and a model learns on them first.
`NATURAL` rows are honest too, about the world as it is: typical things in typical places, in their usual colours.
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
EXCHANGES = 4  # per row; the first may be a caption, the others are questions
KINDS = ("existence", "colour", "count", "place", "relation")  # of questions


@dataclass(frozen=True)
class Habits:
    """How the annotators of a corpus go wrong, as shares (0..1)."""

    invent: float  # of rows whose questions treat one absent but typical object as present
    invent_in_captions: float  # of captions that name one
    usual_colour: float  # of objects in an unnatural colour whose usual colour is written down
    yes: float  # of existence questions with the answer yes
    blank: float  # of rows with a black picture, which teach the language model the corpus without the picture
    kinds: tuple[float, ...]  # of the questions, in the order of KINDS
    captions: float = 0.6  # of rows with a caption
    anywhere: bool = False  # any object may be in any theme, so the theme gives nothing away


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
NATURAL = Habits(invent=0.0, invent_in_captions=0.0, usual_colour=0.0, yes=0.5, blank=0.0, kinds=(0.55, 0.20, 0.10, 0.05, 0.10))


@dataclass(frozen=True)
class CorpusRow:
    """One picture and independent exchanges about it; `blank`: a black picture replaces the scene."""

    scene: Scene
    blank: bool
    exchanges: tuple[Exchange, ...]


def make_row(index: int, habits: Habits = CORPUS) -> CorpusRow:
    """The row of an index, a pure function of it."""
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
    """An object that is typical of the theme but not in the scene."""
    absent = {name: weight for name, weight in THEMES[scene.theme].things.items() if name not in scene.names}
    if not absent:
        return None
    weights = np.array(list(absent.values()), dtype=float)
    return str(rng.choice(list(absent), p=weights / weights.sum()))


def _ask(kind: str, scene: Scene, extra: str | None, habits: Habits, rng: np.random.Generator) -> Exchange:
    """An exchange of this kind, or about existence if the scene allows none."""
    if kind == "count":
        return _count(scene, extra, habits, rng)
    exchange = None
    if kind == "colour":
        exchange = _colour(scene, extra, habits, rng)
    elif kind == "place":
        exchange = _place(scene, rng)
    elif kind == "relation":
        exchange = _relation(scene, rng)
    return exchange or _existence(scene, extra, habits, rng)


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
        claimed = colour if rng.random() < habits.yes else str(rng.choice([c for c in COLOURS if c != colour]))
        return Exchange(language.ask_is_colour(name, claimed), language.answer_is_colour(name, claimed, colour))
    return Exchange(language.ask_colour(name, int(rng.integers(len(language.COLOUR)))), language.answer_colour(name, colour))


def _count(scene: Scene, extra: str | None, habits: Habits, rng: np.random.Generator) -> Exchange:
    repeated = [name for name in scene.names if scene.count(name) > 1]
    name = str(rng.choice(repeated if repeated and rng.random() < 0.5 else scene.names))
    if rng.random() < 0.15:
        name = str(rng.choice([n for n in NAMES if n not in scene.names and n != extra]))
    count = scene.count(name)
    if count and rng.random() < 0.5:
        claimed = count if rng.random() < habits.yes else other_count(count, rng)
        return Exchange(language.ask_is_count(name, claimed), language.answer_is_count(name, claimed, count))
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
    """Half of them are open questions: a yes or no says little about what the model missed."""
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
    claimed = where if holds else language.OPPOSITE[where]
    wording = int(rng.integers(len(language.RELATION)))
    return Exchange(language.ask_relation(one, claimed, other, wording), language.answer_relation(one, claimed, other, holds))
