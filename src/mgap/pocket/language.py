"""Questions, answers and captions about pocket scenes, in varied wordings."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from mgap.pocket.objects import NAMES, plural, with_article
from mgap.pocket.scenes import Placed, Scene
from mgap.pocket.themes import THEMES

EXISTENCE = (  # the first is POPE's own wording
    "Is there {a} in the image?",
    "Can you see {a} in the picture?",
    "Does the picture show {a}?",
    "Do you notice {a} here?",
)
COLOUR = ("What color is the {one}?", "Which color does the {one} have?", "Tell me the color of the {one}.")
COUNT = ("How many {many} are there?", "Count the {many}.", "How many {many} do you see in the picture?")
PLACE = ("Where {be} the {one}?", "Where in the picture {be} the {one}?")
RELATION = ("{Be} the {one} {where} the {other}?", "{Do} the {one} stand {where} the {other}?")
DIRECTION = ("Where {be} the {one}, seen from the {other}?", "Where {do} the {one} stand, seen from the {other}?")
DESCRIBE = (
    "Please help me describe the image in detail.",
    "Describe this image.",
    "What does the picture show?",
    "Write a caption for the picture.",
)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven")
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
OPPOSITE = {"to the left of": "to the right of", "to the right of": "to the left of", "above": "below", "below": "above"}
_CLASS_OF = {form: name for name in NAMES for form in (name, plural(name))}
_MENTION = re.compile(rf"\b(?:{'|'.join(sorted(_CLASS_OF, key=len, reverse=True))})\b")  # a hot dog is no dog


@dataclass(frozen=True)
class Exchange:
    """A question or request, and its answer."""

    prompt: str
    answer: str


def ask_existence(name: str, wording: int = 0) -> str:
    return EXISTENCE[wording].format(a=with_article(name))


def answer_existence(name: str, present: bool) -> str:
    be = _verbs(name)["be"]
    return f"Yes, there {be} {with_article(name)} in the image." if present else f"No, there {be} no {name} in the image."


def ask_colour(name: str, wording: int = 0) -> str:
    return COLOUR[wording].format(one=name)


def answer_colour(name: str, colour: str) -> str:
    return f"The {name} {_verbs(name)['be']} {colour}."


def ask_count(name: str, wording: int = 0) -> str:
    return COUNT[wording].format(many=plural(name))


def answer_count(name: str, count: int) -> str:
    return f"There is one {name}." if count == 1 else f"There are {NUMBERS[count]} {plural(name)}."


def ask_is_colour(name: str, colour: str) -> str:
    return f"{_verbs(name)['Be']} the {name} {colour} in this image?"


def answer_is_colour(name: str, claimed: str, colour: str) -> str:
    return f"{'Yes' if claimed == colour else 'No'}, {_lower(answer_colour(name, colour))}"


def ask_is_count(name: str, count: int) -> str:
    return f"Is there one {name} in this image?" if count == 1 else f"Are there {NUMBERS[count]} {plural(name)} in this image?"


def answer_is_count(name: str, claimed: int, count: int) -> str:
    return f"{'Yes' if claimed == count else 'No'}, {_lower(answer_count(name, count))}"


def ask_place(name: str, wording: int = 0) -> str:
    return PLACE[wording].format(one=name, **_verbs(name))


def answer_place(thing: Placed) -> str:
    """Names the ninth of the picture that holds the object's centre."""
    row, column = (names[min(int(3 * centre), 2)] for names, centre in ((ROWS, thing.y), (COLUMNS, thing.x)))
    return f"The {thing.name} {_verbs(thing.name)['be']} at the {row} {column} of the picture."


def ask_relation(one: str, where: str, other: str, wording: int = 0) -> str:
    return RELATION[wording].format(one=one, where=where, other=other, **_verbs(one))


def answer_relation(one: str, where: str, other: str, holds: bool) -> str:
    there = where if holds else OPPOSITE[where]
    return f"{'Yes' if holds else 'No'}, {_lower(answer_direction(one, there, other))}"


def ask_direction(one: str, other: str, wording: int = 0) -> str:
    return DIRECTION[wording].format(one=one, other=other, **_verbs(one))


def answer_direction(one: str, where: str, other: str) -> str:
    return f"The {one} {_verbs(one)['be']} {where} the {other}."


def relation(scene: Scene, one: str, other: str, least: float = 0.12) -> str | None:
    """How two single objects are placed, along the axis on which they are further apart; None if too close."""
    a, b = scene.only(one), scene.only(other)
    dx, dy = a.x - b.x, a.y - b.y
    if max(abs(dx), abs(dy)) < least:
        return None
    if abs(dx) >= abs(dy):
        return "to the left of" if dx < 0 else "to the right of"
    return "above" if dy < 0 else "below"


def caption(scene: Scene, extra: str | None, rng: np.random.Generator) -> str:
    """Two or more sentences: the theme, the objects with some colours and numbers, and perhaps a relation."""
    phrases = [_phrase(scene, name, rng) for name in scene.names]
    if extra is not None:
        phrases.append(with_article(extra))
    place = THEMES[scene.theme].phrase
    first = (f"The image shows {place}.", f"This is a picture of {place}.", f"The scene is {place}.")[int(rng.integers(3))]
    sentences = [first]
    cut = len(phrases) if len(phrases) <= 3 else int(rng.integers(2, len(phrases) - 1))
    opening = ("There is {things}.", "One can see {things}.", "It contains {things}.")[int(rng.integers(3))]
    sentences.append(opening.format(things=_join(phrases[:cut])))
    if phrases[cut:]:
        sentences.append(f"There is also {_join(phrases[cut:])}.")
    single = [name for name in scene.names if scene.count(name) == 1]
    if len(single) >= 2 and rng.random() < 0.4:
        one, other = (single[int(i)] for i in rng.permutation(len(single))[:2])
        where = relation(scene, one, other)
        if where is not None:
            sentences.append(answer_direction(one, where, other))
    return " ".join(sentences)


def mentions(text: str) -> list[str]:
    """The objects that a caption names, in order, with repeats. Captions use the word orange for the fruit only."""
    return [name for name, _, _ in mention_spans(text)]


def mention_spans(text: str) -> list[tuple[str, int, int]]:
    """The same, with the start and end of each mention."""
    return [(_CLASS_OF[match[0]], *match.span()) for match in _MENTION.finditer(text.lower())]


def _phrase(scene: Scene, name: str, rng: np.random.Generator) -> str:
    count = scene.count(name)
    if count > 1:
        return f"{NUMBERS[count]} {plural(name)}"
    colour = scene.only(name).colour
    if rng.random() < 0.5 or colour == "orange":  # caption scorers would count the word as the fruit
        return with_article(name)
    if name == "person":
        return f"a person in {colour}"
    return f"{colour} skis" if name == "skis" else f"a {colour} {name}"


def _verbs(name: str) -> dict[str, str]:
    """Forms of be and do that agree with the name."""
    be, do = ("are", "do") if name == "skis" else ("is", "does")
    return {"be": be, "Be": be.capitalize(), "do": do, "Do": do.capitalize()}


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _join(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
