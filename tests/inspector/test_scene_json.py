"""A scene from the browser is the scene that was drawn, or it is refused by a sentence."""

import json
import math
import sys
from dataclasses import replace

import pytest

from mgap.errors import SettingError
from mgap.inspector.scene_json import plain, python_lines, scene_of
from mgap.pocket.difficulty import Difficulty
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import MOST, Placed, Scene, make_scene, render
from mgap.pocket.showcase import cases, compose, describe, listed, put
from tests import processes

BANANA = {"name": "banana", "colour": "blue", "x": 0.3, "y": 0.4}
HARDER = [Difficulty(noise=0.15), Difficulty(size=0.1, cut=0.5), Difficulty(0.2, 1.5, 0.55, 0.65, 0.25, 0.125)]
SCENES = [
    *(make_scene(seed) for seed in range(100_000, 100_040)),
    *(make_scene(100_040 + number, difficulty=difficulty) for number, difficulty in enumerate(HARDER)),
    *(case.scene for case in cases()),
    compose(0, "snow"),
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.seed))
def test_a_scene_survives_the_way_through_json(scene):
    assert scene_of(json.loads(json.dumps(plain(scene)))) == scene


def test_a_thing_that_says_little_is_put_as_the_showcase_puts_it():
    scene = scene_of({"theme": "kitchen", "things": [BANANA]})
    assert scene == compose(0, "kitchen", put("banana", 0.3, 0.4, "blue"))
    assert all(scene_of({"theme": "park", "things": [{**BANANA, "name": name}]}) for name in NAMES)


def test_whole_numbers_are_numbers():
    thing = scene_of({"theme": "kitchen", "things": [{**BANANA, "x": 0, "y": 1}]}).only("banana")
    assert (thing.x, thing.y) == (0.0, 1.0)
    assert isinstance(thing.x, float)


def test_an_empty_scene_can_be_drawn_and_described():
    scene = scene_of({"theme": "kitchen", "things": []})
    assert render(scene).size == (96, 96)
    assert describe(scene) == "A drawing of a kitchen: nothing is in it."
    assert listed(scene) == "A kitchen: nothing is in it."


@pytest.mark.parametrize("data", [None, 3, "kitchen", [], [BANANA], True, {}, {"theme": "kitchen"}, {"things": []}])
def test_what_is_no_scene_is_refused(data):
    with pytest.raises(SettingError, match="a scene"):
        scene_of(data)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("theme", "moon", "unknown place 'moon': choose from kitchen"),
        ("theme", ["kitchen"], "unknown place"),
        ("things", {}, "give a list"),
        ("things", "banana", "give a list"),
        ("things", [BANANA] * (MOST + 1), f"8 things in one scene: at most {MOST}"),
        ("things", ["banana"], "a thing is an object"),
        ("things", [None], "a thing is an object"),
        ("things", [{"name": "banana"}], "a thing lacks colour, x, y"),
        ("seed", -1, "seed is -1"),
        ("seed", 1.5, "seed is 1.5"),
        ("seed", True, "seed is True"),
        ("seed", 2**32, "seed is 4294967296"),
        ("seed", 900_000, "kept for outside checks"),
        ("horizon", 1.5, "horizon is 1.5: give a number from 0 to 1"),
        ("horizon", None, "horizon is None"),
        ("difficulty", {"fog": 1}, "no knob 'fog': choose from noise"),
        ("difficulty", {"noise": True}, "noise=True must be a number from 0 to 1"),
        ("difficulty", None, "give knobs and their values"),
        ("weather", "rain", "a scene has no 'weather'"),
    ],
)
def test_a_scene_outside_the_world_is_refused_by_a_sentence(field, value, sentence):
    with pytest.raises(SettingError, match=sentence):
        scene_of({"theme": "kitchen", "things": [BANANA], field: value})


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("name", "unicorn", "unknown thing 'unicorn'"),
        ("name", {}, "unknown thing"),
        ("colour", "teal", "unknown colour 'teal': choose from red"),
        ("colour", None, "unknown colour None"),
        ("style", "cubist", "unknown style 'cubist': choose from flat, outlined"),
        ("x", 1.01, "the x of the banana is 1.01: give a number from 0 to 1"),
        ("y", -0.01, "the y of the banana is -0.01"),
        ("x", math.nan, "is nan"),
        ("x", math.inf, "is inf"),
        ("x", 10**400, "is 1000"),
        ("x", "0.3", "is '0.3'"),
        ("x", True, "is True"),
        ("width", 0, "the width of the banana is 0: give a number from 0.01 to 1"),
        ("height", 1.2, "the height of the banana is 1.2"),
        ("degrees", 400, "the turn of the banana is 400"),
        ("mirrored", 1, "mirrored is 1: give true or false"),
        ("onclick", "alert(1)", "a thing has no 'onclick'"),
        ("onclick" * 50, "", "a thing has no 'onclick.*\\.\\.\\.: choose"),
    ],
)
def test_a_thing_outside_the_world_is_refused_by_a_sentence(field, value, sentence):
    with pytest.raises(SettingError, match=sentence) as refused:
        scene_of({"theme": "kitchen", "things": [{**BANANA, field: value}]})
    assert len(str(refused.value)) < 800


def test_every_size_that_the_world_makes_is_allowed():
    largest = max(OBJECTS, key=lambda name: OBJECTS[name].size)
    scene = compose(0, "savanna", put(largest, 0.5, 0.5, scale=1.15 * 1.14))
    assert scene_of(plain(scene)) == scene


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.seed))
def test_the_python_lines_build_this_very_scene(scene):
    names: dict[str, object] = {}
    exec(python_lines(scene), names)
    assert names["scene"] == scene
    assert names["image"].tobytes() == render(scene).tobytes()


def test_the_python_lines_look_as_a_formatter_writes_them():
    turned = replace(put("cup", 0.1, 0.2), degrees=-7.5, mirrored=True)
    drawn = [make_scene(100_000), compose(0, "snow"), compose(1, "office", turned, put("elephant", 1 / 3, 2 / 3, "pink"))]
    drawn += [make_scene(100_000, difficulty=difficulty) for difficulty in HARDER]
    for scene in drawn:
        lines = python_lines(scene)
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "88", "-"]
        done = processes.run(command, input=lines, capture_output=True, text=True, check=True)
        assert done.stdout == lines


def test_the_scene_of_the_lines_needs_no_name_beyond_those_imported():
    assert "import Placed, Scene, render" in python_lines(compose(0, "snow", put("skis", 0.5, 0.5)))
    assert {Placed.__module__, Scene.__module__, render.__module__} == {"mgap.pocket.scenes"}
