"""A pocket scene as plain JSON and as Python code. Every field from the browser is checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from mgap.errors import SettingError
from mgap.pocket.difficulty import USUAL, Difficulty
from mgap.pocket.drawing import COLOURS, STYLES
from mgap.pocket.objects import NAMES
from mgap.pocket.scenes import FORBIDDEN, MOST, Placed, Scene
from mgap.pocket.showcase import STYLE, compose, put
from mgap.pocket.themes import THEMES

SIZES = (0.01, 1.0)  # of a thing, as shares of the picture's side
TURNS = (-180.0, 180.0)  # degrees
SEEDS = 2**32  # exclusive bound, of a backdrop's texture
LINE = 88  # columns of a line of Python


def scene_of(data: object) -> Scene:
    """Read a scene from plain data; refuses anything else.

    {"theme": "kitchen", "things": [{"name": "banana", "colour": "blue", "x": 0.3, "y": 0.4}]} is enough. A thing may also have
    width, height, degrees, mirrored and style; a scene seed, horizon and difficulty. The things are already placed as the
    difficulty says.
    """
    given = _fields(data, "a scene", ("theme", "things"), ("seed", "horizon", "difficulty"))
    theme = _one_of(given["theme"], THEMES, "place")
    if not isinstance(given["things"], list):
        raise SettingError(f"the things of a scene are {_shown(given['things'])}: give a list of them")
    if len(given["things"]) > MOST:
        raise SettingError(f"{len(given['things'])} things in one scene: at most {MOST} have room; remove some")
    scene = compose(0, theme, *(_thing_of(thing) for thing in given["things"]))
    seed, horizon = given.get("seed", scene.seed), given.get("horizon", scene.horizon)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
        raise SettingError(f"a scene's seed is {_shown(seed)}: give a whole number from 0 to {SEEDS - 1}")
    if seed in FORBIDDEN:
        raise SettingError(f"seeds {FORBIDDEN.start} to {FORBIDDEN.stop - 1} are kept for outside checks: choose another")
    difficulty = Difficulty.of(given.get("difficulty", {}))
    return replace(scene, seed=seed, horizon=_number(horizon, "a scene's horizon", 0.0, 1.0), difficulty=difficulty)


def plain(scene: Scene) -> dict[str, Any]:
    """A scene as JSON with every field, but of the difficulty only what is not usual; `scene_of` reads it back exactly."""
    harder = {"difficulty": knobs} if (knobs := _knobs(scene)) else {}
    without = {name: value for name, value in asdict(scene).items() if name != "difficulty"}
    return {**without, "things": [asdict(thing) for thing in scene.things], **harder}


def python_lines(scene: Scene) -> str:
    """Python source that builds this scene and draws it."""
    things, knobs = "".join(_call("Placed", asdict(thing), 8) for thing in scene.things), _knobs(scene)
    imports = "from mgap.pocket.scenes import Placed, Scene, render\n\n"
    if knobs:
        imports = f"from mgap.pocket.difficulty import Difficulty\n{imports}"
    return (
        f"{imports}scene = Scene(\n    seed={scene.seed},\n    theme={_literal(scene.theme)},\n"
        + (f"    things=(\n{things}    ),\n" if things else "    things=(),\n")
        + f"    horizon={scene.horizon!r},\n"
        + (_call("difficulty=Difficulty", knobs, 4) if knobs else "")
        + ")\nimage = render(scene)\n"
    )


def _knobs(scene: Scene) -> dict[str, float]:
    """The knobs of the difficulty that are not as usual."""
    usual = asdict(USUAL)
    return {name: value for name, value in asdict(scene.difficulty).items() if value != usual[name]}


def _thing_of(data: object) -> Placed:
    given = _fields(data, "a thing", ("name", "colour", "x", "y"), ("width", "height", "degrees", "mirrored", "style"))
    name = _one_of(given["name"], NAMES, "thing")
    colour = _one_of(given["colour"], COLOURS, "colour")
    style = _one_of(given.get("style", STYLE), STYLES, "style")
    mirrored = given.get("mirrored", False)
    if not isinstance(mirrored, bool):
        raise SettingError(f"mirrored is {_shown(mirrored)}: give true or false")
    x, y = (_number(given[axis], f"the {axis} of the {name}", 0.0, 1.0) for axis in ("x", "y"))
    thing = put(name, x, y, colour, style=style, mirrored=mirrored)
    return replace(
        thing,
        width=_number(given.get("width", thing.width), f"the width of the {name}", *SIZES),
        height=_number(given.get("height", thing.height), f"the height of the {name}", *SIZES),
        degrees=_number(given.get("degrees", thing.degrees), f"the turn of the {name}", *TURNS),
    )


def _fields(data: object, what: str, needed: Collection[str], further: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise SettingError(f"{what} is an object with {', '.join(needed)}, not {_shown(data)}")
    if missing := [name for name in needed if name not in data]:
        raise SettingError(f"{what} lacks {', '.join(missing)}: give {', '.join(needed)}")
    if unknown := [name for name in data if name not in needed and name not in further]:
        raise SettingError(f"{what} has no {_shown(unknown[0])}: choose from {', '.join((*needed, *further))}")
    return data


def _one_of(value: object, allowed: Collection[str], what: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise SettingError(f"unknown {what} {_shown(value)}: choose from {', '.join(allowed)}")
    return value


def _number(value: object, what: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:  # NaN is in no range
        raise SettingError(f"{what} is {_shown(value)}: give a number from {low:g} to {high:g}")
    return float(value)


def _shown(value: object) -> str:
    """A value, shortened for an error message."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _call(name: str, fields: Mapping[str, object], indent: int) -> str:
    """A call on one line, with its arguments on a second, or one argument per line, whichever fits first."""
    pad = " " * indent
    given = [f"{key}={_literal(value)}" for key, value in fields.items()]
    together = ", ".join(given)
    if len(one := f"{pad}{name}({together}),") <= LINE:
        return f"{one}\n"
    if len(inner := f"{pad}    {together}") <= LINE:
        return f"{pad}{name}(\n{inner}\n{pad}),\n"
    return f"{pad}{name}(\n" + "".join(f"{pad}    {one},\n" for one in given) + f"{pad}),\n"


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
