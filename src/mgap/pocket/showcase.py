"""Hand-made scenes for the demo, chosen for their questions before any model answered them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.pocket import language
from mgap.pocket.drawing import COLOURS
from mgap.pocket.objects import OBJECTS, with_article
from mgap.pocket.scenes import Placed, Scene
from mgap.pocket.themes import THEMES

CAPTION = "caption"  # the truth of a case that asks for a description: only what is drawn
YES_NO = ("yes", "no")
SEEDS = 10_000  # first seed of the backdrops' texture
STYLE = "outlined"


@dataclass(frozen=True)
class ShowcaseCase:
    """One picture, one question, the truth, and how the prior relates to it."""

    title: str
    why: str
    scene: Scene
    question: str
    truth: str  # the deciding word: yes, blue, two; or CAPTION
    choices: tuple[str, ...] = ()  # the possible deciding words


def cases() -> tuple[ShowcaseCase, ...]:
    """Agreement, conflict in both directions, a number, and a description."""
    kitchen = compose(1, "kitchen", put("banana", 0.30, 0.34, "yellow", 1.25), put("cup", 0.76, 0.30), put("bowl", 0.66, 0.76))
    street = compose(
        2, "street", put("traffic light", 0.18, 0.34), put("car", 0.62, 0.44, "red"), put("person", 0.36, 0.74, "blue")
    )
    no_fridge = compose(
        3, "kitchen", put("oven", 0.28, 0.36), put("bottle", 0.76, 0.32), put("cup", 0.40, 0.80), put("bowl", 0.76, 0.76)
    )
    office = compose(4, "office", put("elephant", 0.66, 0.60, scale=1.1), put("clock", 0.22, 0.24), put("book", 0.20, 0.78))
    park = compose(
        5, "park", put("dog", 0.24, 0.34, "brown"), put("dog", 0.72, 0.70, "brown", mirrored=True), put("kite", 0.74, 0.22)
    )
    desk = compose(
        6, "office", put("laptop", 0.36, 0.40), put("book", 0.76, 0.72), put("clock", 0.78, 0.24), put("bottle", 0.20, 0.80)
    )
    return (
        _colour_case("Yellow banana", "Prior and picture agree: bananas are yellow.", kitchen, "banana"),
        _colour_case(
            "Blue banana",
            "The same picture, and they conflict: this banana is blue.",
            _recolour(kitchen, "banana", "blue"),
            "banana",
        ),
        _existence_case("A car in the street", "Prior and picture agree: streets have cars, and one is drawn.", street, "car"),
        _existence_case(
            "A kitchen without a refrigerator",
            "They conflict: a refrigerator is the commonest thing in a kitchen, and none is drawn.",
            no_fridge,
            "refrigerator",
        ),
        _existence_case(
            "An elephant in the office",
            "They conflict the other way: offices hardly ever have elephants, and one is drawn.",
            office,
            "elephant",
        ),
        ShowcaseCase(
            "Two dogs",
            "A number: most things come once.",
            park,
            language.ask_count("dog"),
            language.NUMBERS[park.count("dog")],
            language.NUMBERS,
        ),
        ShowcaseCase(
            "An office in words",
            "A description: the chair and the cup, common in offices, are not drawn.",
            desk,
            language.DESCRIBE[1],
            CAPTION,
        ),
    )


def judge(case: ShowcaseCase, answer: str) -> str:
    """ "right", "wrong" or "unclear": by yes or no as POPE reads them, else by the first word among the choices."""
    if case.choices == YES_NO:
        verdict = yes_or_no(answer)
    else:
        verdict = next((word for word in re.findall(r"[a-z]+", answer.lower()) if word in case.choices), None)
    return "unclear" if verdict is None else "right" if verdict == case.truth else "wrong"


def invented(scene: Scene, named: Collection[str]) -> list[str]:
    """The objects that a description names but the scene lacks, each once."""
    return [name for name in dict.fromkeys(named) if name not in scene.names]


def describe(scene: Scene) -> str:
    """The objects and their positions, as alternative text."""
    things = (f"{_with_colour(thing)} ({_where(thing)})" for thing in scene.things)
    return f"A drawing of {THEMES[scene.theme].phrase}: {', '.join(things) or 'nothing is in it'}."


def listed(scene: Scene) -> str:
    """The objects, for a line under the picture."""
    things = (_with_colour(thing) for thing in scene.things)
    return f"{THEMES[scene.theme].phrase.capitalize()}: {', '.join(things) or 'nothing is in it'}."


def _with_colour(thing: Placed) -> str:
    return f"a person in {thing.colour}" if thing.name == "person" else with_article(f"{thing.colour} {thing.name}")


def _where(thing: Placed) -> str:
    column = "left" if thing.x < 0.4 else "right" if thing.x > 0.6 else ""
    row = "top" if thing.y < 0.4 else "bottom" if thing.y > 0.6 else ""
    return " ".join(word for word in (row, column) if word) or "middle"


def put(
    name: str,
    x: float,
    y: float,
    colour: str | None = None,
    scale: float = 1.0,
    style: str = STYLE,
    mirrored: bool = False,
) -> Placed:
    """An upright object at a position, by default in its usual colour and size."""
    size = OBJECTS[name].size * scale
    return Placed(name, colour or OBJECTS[name].usual_colour, style, x, y, size, size, 0.0, mirrored)


def compose(number: int, theme: str, *things: Placed) -> Scene:
    """A scene of these objects, drawn in this order; the number chooses the backdrop's texture."""
    return Scene(SEEDS + number, theme, things, 0.5)


def _recolour(scene: Scene, name: str, colour: str) -> Scene:
    return replace(scene, things=tuple(replace(t, colour=colour) if t.name == name else t for t in scene.things))


def _colour_case(title: str, why: str, scene: Scene, name: str) -> ShowcaseCase:
    return ShowcaseCase(title, why, scene, language.ask_colour(name), scene.only(name).colour, tuple(COLOURS))


def _existence_case(title: str, why: str, scene: Scene, name: str) -> ShowcaseCase:
    return ShowcaseCase(title, why, scene, language.ask_existence(name), "yes" if name in scene.names else "no", YES_NO)
