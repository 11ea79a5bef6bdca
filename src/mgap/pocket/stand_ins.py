"""Stand-ins for the models outside that evidence comes from (methods/given): exact by construction, and wrong on purpose.

A scene says what is in its picture, so a detector and a mask need no weights, and a caption of the pocket world can be drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from mgap.backbones.asked_rows import Asked
from mgap.backbones.prepared_pictures import picture_digest, picture_key
from mgap.errors import ImageError
from mgap.methods.given.brings import Fields, Listed, Other, Pictured
from mgap.methods.given.evidence import Box, Brings, Evidence
from mgap.pocket.drawing import COLOURS, TRAINING_STYLES
from mgap.pocket.language import NUMBERS, mention_spans, mentions
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import WORLD, Placed, Scene, choose_colour, place_thing, render
from mgap.pocket.themes import THEMES
from mgap.settings import check_share

_BEFORE = re.compile(r"(?:\b(\w+)\s+)$")  # the word before a thing
_IN_COLOUR = re.compile(rf"^ in ({'|'.join(COLOURS)})\b")  # "a person in red"


def hull(thing: Placed) -> tuple[float, float, float, float]:
    """The upright box around a turned thing, clipped to the picture: left, top, right, bottom in shares of its side."""
    angle = np.deg2rad(thing.degrees)
    cos, sin = abs(np.cos(angle)), abs(np.sin(angle))
    dx, dy = (thing.width * cos + thing.height * sin) / 2, (thing.width * sin + thing.height * cos) / 2
    sides = (thing.x - dx, thing.y - dy, thing.x + dx, thing.y + dy)
    left, top, right, bottom = (float(min(max(side, 0.0), 1.0)) for side in sides)
    return left, top, right, bottom


@dataclass(frozen=True)
class TrueBoxes:
    """A detector that knows the scenes of the pictures it will see, and finds all of the words that are there.

    A share `error` of its boxes is wrong: elsewhere in the picture, and called by a word that is not there.
    """

    scenes: Iterable[Scene]
    error: float = 0.0
    seed: int = 0
    _known: dict[bytes, Scene] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_share("error", self.error)
        object.__setattr__(self, "_known", _scenes_by_picture(self.scenes))

    def __call__(self, pictures: Sequence[Image.Image], words: Sequence[Sequence[str]]) -> list[list[Box]]:
        return [self._find(picture, asked) for picture, asked in zip(pictures, words, strict=True)]

    def _find(self, picture: Image.Image, words: Sequence[str]) -> list[Box]:
        scene = _find_scene(self._known, picture)
        rng = np.random.default_rng([WORLD, scene.seed, 17, self.seed])
        absent = [word for word in words if word not in scene.names]
        boxes = []
        for thing in scene.things:
            if thing.name in words:
                sides, word = hull(thing), thing.name
                if rng.random() < self.error:
                    sides, word = _elsewhere(rng, sides), str(rng.choice(absent)) if absent else word
                boxes.append(Box(word, 1.0, *sides))
        return boxes


def _elsewhere(rng: np.random.Generator, sides: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = sides
    x, y = rng.uniform(0, 1 - (right - left)), rng.uniform(0, 1 - (bottom - top))
    return float(x), float(y), float(x + right - left), float(y + bottom - top)


@dataclass(frozen=True)
class Redrawn:
    """A text-to-image model: a scene with what a caption names, in the colours, numbers and place that it gives."""

    def __call__(self, texts: Sequence[str], count: int, seed: int) -> list[list[Image.Image]]:
        return [[render(scene_from(text, seed + number)) for number in range(count)] for text in texts]


def scene_from(caption: str, seed: int) -> Scene:
    """The scene of a caption; what it does not say comes from the seed."""
    rng, text = np.random.default_rng([WORLD, seed, 19]), caption.lower()
    told: dict[str, tuple[int, str | None]] = {}  # by thing: how many, and the colour
    for name, start, end in mention_spans(text):
        before, after = _BEFORE.search(text[:start]), _IN_COLOUR.match(text[end:])
        word = before[1] if before else ""
        number = NUMBERS.index(word) if word in NUMBERS[2:] else 1
        colour = after[1] if after else word if word in COLOURS else None
        told.setdefault(name, (number, colour))
    things: list[Placed] = []
    names = [name for name, (number, _) in told.items() for _ in range(number)]
    shrink = min(1.0, (4 / max(1, len(names))) ** 0.4)
    for name in names:
        size, colour = OBJECTS[name].size * shrink, told[name][1]
        x, y = place_thing(rng, things, size, size)
        style = str(rng.choice(TRAINING_STYLES))
        things.append(Placed(name, colour or choose_colour(rng, name), style, x, y, size, size, rng.uniform(-14, 14), False))
    theme = _theme(text, list(told))
    return Scene(seed, theme, tuple(things), rng.uniform(0.4, 0.62))


def _theme(text: str, names: Sequence[str]) -> str:
    """The place that a caption names first; otherwise the one that its things are most usual in."""
    named = {text.find(theme.phrase): name for name, theme in THEMES.items() if theme.phrase in text}
    usual = max(THEMES, key=lambda theme: sum(THEMES[theme].things.get(name, 0) for name in names))
    return named[min(named)] if named else usual


def masked(scene: Scene, words: Sequence[str]) -> Image.Image:
    """AGLA's picture: black but for the hulls of the words' things; the whole picture if none is there."""
    picture = render(scene)
    boxes = [hull(thing) for thing in scene.things if thing.name in words]
    if not boxes:
        return picture
    seen = np.asarray(picture)  # [height, width, 3]
    kept, (height, width) = np.zeros_like(seen), seen.shape[:2]
    for left, top, right, bottom in boxes:
        rows = slice(int(top * height), int(np.ceil(bottom * height)))
        columns = slice(int(left * width), int(np.ceil(right * width)))
        kept[rows, columns] = seen[rows, columns]
    return Image.fromarray(kept)


class Masked:
    """AGLA's evidence: what the prompt names, and the rest black. Its authors match picture and prompt by BLIP."""

    def __init__(self, scenes: Iterable[Scene]) -> None:
        self._known = _scenes_by_picture(scenes)

    def __call__(self, asked: Sequence[Asked]) -> list[Evidence]:
        scenes = [_find_scene(self._known, row.picture) for row in asked]
        return [Evidence((masked(scene, mentions(row.prompt)),)) for scene, row in zip(scenes, asked, strict=True)]


def stand_in_evidence(model: Any, scenes: Sequence[Scene], *, error: float = 0.0, length: int = 96) -> dict[str, Brings]:
    """Evidence about these scenes' pictures for every preset of `Given`; captions to draw have at most `length` tokens."""
    boxes = TrueBoxes(scenes, error=error)
    return {
        "convis": Pictured(model, Redrawn(), length=length),
        "agla": Masked(scenes),
        "halc": Fields(model, boxes, vocabulary=NAMES),
        "marine": Listed(boxes, NAMES),
        "cicd": Other([render(scene) for scene in scenes]),
    }


def _scenes_by_picture(scenes: Iterable[Scene]) -> dict[bytes, Scene]:
    return {_key(render(scene)): scene for scene in scenes}


def _find_scene(known: Mapping[bytes, Scene], picture: Image.Image) -> Scene:
    scene = known.get(_key(picture))
    if scene is None:
        raise ImageError("this stand-in does not know the picture's scene: give it among its scenes")
    return scene


def _key(picture: Image.Image) -> bytes:
    return picture_key(picture.size, picture_digest(picture))
