"""Scenes: pure functions of the world's version, a seed and a difficulty, so their content is known exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from PIL import Image

from mgap.errors import SettingError
from mgap.pocket.difficulty import USUAL, Difficulty
from mgap.pocket.drawing import COLOURS, HELD_OUT_STYLE, SPRITE, TRAINING_STYLES
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.themes import THEMES

WORLD = 1  # the version: changing drawings, themes or the rules below makes another world
SIDE = 96  # of a picture, in pixels
MOST = 7  # objects in a scene
OUT_OF_THEME = 0.08  # share of objects drawn from all themes
ODD_COLOUR = 0.04  # share of objects in a colour that they do not have in nature
REPEATED = 0.18  # share of objects that appear two or three times
FORBIDDEN = range(900_000, 1_000_000)  # seeds reserved for outside checks


@dataclass(frozen=True)
class Placed:
    """One object in a scene; lengths are shares of the picture's side, (x, y) is its centre."""

    name: str
    colour: str
    style: str
    x: float
    y: float
    width: float
    height: float
    degrees: float
    mirrored: bool

    def to_sprite(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """[2, 3]: the affine map from picture to sprite coordinates; both run from -1 to 1."""
        angle = np.deg2rad(self.degrees)
        cos, sin = np.cos(angle), np.sin(angle)
        rotation = np.array([[cos, sin], [-sin, cos]]) / [[-self.width if self.mirrored else self.width], [self.height]]
        shift = -rotation @ [2 * self.x - 1, 2 * self.y - 1]
        return np.column_stack([rotation, shift])


@dataclass(frozen=True)
class Scene:
    """A theme and the objects in it, in drawing order.

    The objects are placed as the difficulty says; `render` does the rest of it.
    """

    seed: int
    theme: str
    things: tuple[Placed, ...]
    horizon: float
    difficulty: Difficulty = USUAL

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of objects, each once, in drawing order."""
        return tuple(dict.fromkeys(thing.name for thing in self.things))

    def count(self, name: str) -> int:
        return sum(thing.name == name for thing in self.things)

    def only(self, name: str) -> Placed:
        """The object of a kind that occurs once."""
        (thing,) = (thing for thing in self.things if thing.name == name)
        return thing


def make_scene(seed: int, *, held_out: bool = False, anywhere: bool = False, difficulty: Difficulty = USUAL) -> Scene:
    """The scene of a seed.

    `held_out` draws it in the style that no model is trained on. `anywhere` allows any object in any theme, so that the theme
    says nothing about the objects. `difficulty` makes the picture harder to read, with the same objects in the same colours.
    """
    rng, theme, names = _choose_content(seed, stray=1.0 if anywhere else OUT_OF_THEME)
    shrink = min(1.0, (4 / len(names)) ** 0.4)
    things: list[Placed] = []
    for name in names:
        size = OBJECTS[name].size * shrink * rng.uniform(0.85, 1.15)
        stretch = rng.uniform(0.88, 1.14)
        width, height = size * stretch, size / stretch
        x, y = place_thing(rng, things, width, height)
        style = str(rng.choice(TRAINING_STYLES))  # drawn even if held out, to leave the random numbers after it the same
        colour = choose_colour(rng, name)
        mirrored = bool(rng.random() < 0.5) and OBJECTS[name].mirrors
        style = HELD_OUT_STYLE if held_out else style
        things.append(Placed(name, colour, style, x, y, width, height, rng.uniform(-14, 14), mirrored))
    things = [_make_harder(thing, difficulty) for thing in things]  # only now, to leave the random numbers the same
    return Scene(seed, theme, tuple(things), rng.uniform(0.4, 0.62), difficulty)


def _make_harder(thing: Placed, difficulty: Difficulty) -> Placed:
    x, y = difficulty.move(thing.x, thing.y)
    return replace(thing, x=x, y=y, width=thing.width * difficulty.size, height=thing.height * difficulty.size)


def scene_names(seed: int) -> tuple[str, ...]:
    """The names in the scene of a seed. Building the whole scene takes three times as long."""
    return tuple(dict.fromkeys(_choose_content(seed, stray=OUT_OF_THEME)[2]))


def _choose_content(seed: int, stray: float) -> tuple[np.random.Generator, str, list[str]]:
    """The theme and the objects' names, and the generator for the rest."""
    if seed < 0:
        raise SettingError(f"seed={seed} must not be negative")
    rng = np.random.default_rng([WORLD, seed])
    theme = str(rng.choice(list(THEMES)))
    return rng, theme, _choose_names(rng, theme, stray)


def _choose_names(rng: np.random.Generator, theme: str, stray: float) -> list[str]:
    things = THEMES[theme].things
    weights = np.array(list(things.values()), dtype=float)
    count = int(rng.integers(2, MOST + 1))
    names: list[str] = []
    while len(names) < count:
        is_stray = rng.random() < stray
        name = str(rng.choice(NAMES) if is_stray else rng.choice(list(things), p=weights / weights.sum()))
        if name in names:
            continue
        copies = int(rng.integers(2, 4)) if rng.random() < REPEATED else 1
        names += [name] * min(copies, count - len(names))
    return names


def choose_colour(rng: np.random.Generator, name: str) -> str:
    """Mostly one that the thing has in nature."""
    colours = OBJECTS[name].colours
    if rng.random() < ODD_COLOUR:
        natural = {colour for colour, _ in colours}
        return str(rng.choice([colour for colour in COLOURS if colour not in natural]))
    weights = np.array([weight for _, weight in colours], dtype=float)
    return str(rng.choice([colour for colour, _ in colours], p=weights / weights.sum()))


def place_thing(rng: np.random.Generator, things: list[Placed], width: float, height: float) -> tuple[float, float]:
    """Of 12 random positions, the one that overlaps least with the objects placed so far."""
    best, least = (0.5, 0.5), np.inf
    for _ in range(12):
        x, y = rng.uniform(width / 2, 1 - width / 2), rng.uniform(height / 2, 1 - height / 2)
        overlap = sum(
            max(0.0, (width + t.width) / 2 - abs(x - t.x)) * max(0.0, (height + t.height) / 2 - abs(y - t.y)) for t in things
        )
        if overlap < least:
            best, least = (float(x), float(y)), overlap
        if least == 0:
            break
    return best


@lru_cache(maxsize=4096)
def sprite(name: str, style: str, colour: str) -> Image.Image:
    return OBJECTS[name].sprite(style, colour)


def render(scene: Scene, side: int = SIDE) -> Image.Image:
    """Draw a scene, RGB, as hard to read as its difficulty says."""
    rng = np.random.default_rng([WORLD, scene.seed, 1])
    picture = Image.fromarray(backdrop(scene, side, rng))
    for thing in scene.things:
        drawn = sprite(thing.name, thing.style, thing.colour)
        placed = drawn.transform((side, side), Image.Transform.AFFINE, _for_pillow(thing, side), Image.Resampling.BILINEAR)
        picture.paste(placed, (0, 0), placed)
    grain = rng.normal(0, 3, (side, side, 1))
    finished = Image.fromarray((np.asarray(picture) + grain).clip(0, 255).astype(np.uint8))
    return scene.difficulty.degrade(finished, side / SIDE, np.random.default_rng([WORLD, scene.seed, 13]))


def backdrop(scene: Scene, side: int, rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Two bands of the theme's colours with a soft, uneven texture: [side, side, 3]."""
    theme = THEMES[scene.theme]
    rows = (np.arange(side) / side > scene.horizon)[:, None, None]
    base = np.where(rows, theme.below, theme.above) + rng.normal(0, 8, 3)
    coarse = rng.normal(0, 9, (8, 8)).astype(np.float32)
    texture = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))
    return (base + texture[:, :, None]).clip(0, 255).astype(np.uint8)  # type: ignore[no-any-return]


def _for_pillow(thing: Placed, side: int) -> tuple[float, ...]:
    """`to_sprite` in pixels: six numbers, row by row."""
    (a, b, c), (d, e, f) = thing.to_sprite()
    scale = SPRITE / side
    return tuple(float(v) for v in (a * scale, b * scale, (c - a - b + 1) * SPRITE / 2,
                                    d * scale, e * scale, (f - d - e + 1) * SPRITE / 2))  # fmt: skip
