"""The world: drawings, scenes and what is said about them are pure functions, and what is said is true."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mgap.errors import SettingError
from mgap.pocket import language
from mgap.pocket.drawing import COLOURS, SPRITE, STYLES, TRAINING_STYLES
from mgap.pocket.objects import NAMES, OBJECTS, plural, with_article
from mgap.pocket.scenes import FORBIDDEN, MOST, make_scene, render, scene_names
from mgap.pocket.showcase import cases
from mgap.pocket.themes import THEMES

SCENES = [make_scene(seed) for seed in range(400)]


def test_there_are_enough_objects_and_themes():
    assert len(OBJECTS) >= 48
    assert len(THEMES) >= 10
    assert {name for theme in THEMES.values() for name in theme.things} == set(NAMES)


def test_the_names_of_a_scene_can_be_had_alone():
    assert [scene_names(scene.seed) for scene in SCENES] == [scene.names for scene in SCENES]
    with pytest.raises(SettingError, match="seed=-1"):
        scene_names(-1)


def test_objects_have_coco_names(shared):
    lines = (shared / "data" / "chair" / "synonyms.txt").read_text().splitlines()
    coco = {line.split(",")[0].strip() for line in lines if line.strip()}
    assert set(NAMES) <= coco, set(NAMES) - coco


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_shows_its_colour_in_every_style(name):
    thing = OBJECTS[name]
    assert sum(weight for _, weight in thing.colours) == 100
    assert {colour for colour, _ in thing.colours} <= set(COLOURS)
    assert thing.colours[0][1] == max(weight for _, weight in thing.colours)
    for style in STYLES:
        red, blue = (np.asarray(thing.sprite(style, colour)).astype(int) for colour in ("red", "blue"))
        assert red.shape == (SPRITE, SPRITE, 4)
        assert np.array_equal(red[..., 3], blue[..., 3])
        seen = red[..., 3] > 128
        assert seen.mean() > 0.1
        coloured = (np.abs(red - blue)[..., :3].max(-1) > 40) & seen
        assert coloured.sum() > 0.25 * seen.sum(), (style, coloured.sum() / seen.sum())


@pytest.mark.parametrize("name", NAMES)
def test_the_styles_of_a_thing_differ(name):
    drawn = [np.asarray(OBJECTS[name].sprite(style, "green")).astype(int) for style in STYLES]
    assert all(np.abs(a - b).mean() > 3 for a, b in pairwise(drawn))


def test_a_scene_is_a_pure_function_of_its_seed():
    assert make_scene(7) == make_scene(7)
    assert make_scene(7) != make_scene(8)
    assert np.array_equal(np.asarray(render(make_scene(7))), np.asarray(render(make_scene(7))))


def test_scenes_hold_two_to_seven_things_inside_the_picture():
    for scene in SCENES:
        assert 2 <= len(scene.things) <= MOST
        for thing in scene.things:
            assert thing.width / 2 <= thing.x <= 1 - thing.width / 2
            assert thing.height / 2 <= thing.y <= 1 - thing.height / 2
            assert thing.style in TRAINING_STYLES


def test_most_things_belong_to_the_place_and_have_a_natural_colour():
    things = [(scene.theme, thing) for scene in SCENES for thing in scene.things]
    stray = np.mean([thing.name not in THEMES[theme].things for theme, thing in things])
    odd = np.mean([thing.colour not in dict(OBJECTS[thing.name].colours) for _, thing in things])
    assert 0.03 < stray < 0.12
    assert 0.02 < odd < 0.06


def test_a_held_out_scene_differs_in_style_only():
    from dataclasses import replace

    for seed in range(40):
        plain, held_out = make_scene(seed), make_scene(seed, held_out=True)
        assert {thing.style for thing in held_out.things} == {"sketch"}
        assert held_out == replace(plain, things=tuple(replace(thing, style="sketch") for thing in plain.things))


def test_anywhere_the_place_says_nothing():
    scenes = [make_scene(seed, anywhere=True) for seed in range(400)]
    typical = np.mean([t.name in THEMES[s.theme].things for s in scenes for t in s.things])
    expected = np.mean([len(theme.things) / len(NAMES) for theme in THEMES.values()])
    assert typical == pytest.approx(expected, abs=0.05)


def test_what_is_drawn_is_seen():
    """A scene without one of its things looks different where that thing stood."""
    from dataclasses import replace

    scene = next(s for s in SCENES if len(s.things) >= 4)
    whole = np.asarray(render(scene)).astype(int)
    for index, thing in enumerate(scene.things):
        less = replace(scene, things=scene.things[:index] + scene.things[index + 1 :])
        changed = np.abs(whole - np.asarray(render(less)).astype(int)).max(-1) > 30
        ys, xs = np.nonzero(changed)
        assert len(xs) > 20
        assert abs(xs.mean() / 96 - thing.x) < 0.2
        assert abs(ys.mean() / 96 - thing.y) < 0.2


def test_relations_follow_from_the_layout():
    found = set()
    for scene in SCENES:
        single = [name for name in scene.names if scene.count(name) == 1]
        for one, other in pairwise(single):
            where = language.relation(scene, one, other)
            if where is None:
                continue
            found.add(where)
            a, b = scene.only(one), scene.only(other)
            holds = {"to the left of": a.x < b.x, "to the right of": a.x > b.x, "above": a.y < b.y, "below": a.y > b.y}
            assert holds[where]
            assert language.relation(scene, other, one) == language.OPPOSITE[where]
    assert found == set(language.OPPOSITE)


@pytest.mark.parametrize("extra", [None, "donut"])
def test_a_caption_names_what_is_there_and_the_extra_and_nothing_else(extra):
    patterns = {name: re.compile(rf"\b({re.escape(name)}|{re.escape(plural(name))})\b") for name in NAMES}
    for scene in SCENES[:150]:
        if "donut" in scene.names:
            continue
        text = language.caption(scene, extra, np.random.default_rng(scene.seed))
        assert text.count(".") >= 2
        rest = text
        named = set()
        for name in sorted(NAMES, key=len, reverse=True):  # "teddy bear" before "bear"
            if patterns[name].search(rest):
                named.add(name)
                rest = patterns[name].sub("", rest)
        assert named == {*scene.names, *([extra] if extra else [])}, text


def test_articles_and_plurals():
    assert [with_article(name) for name in ("dog", "apple", "skis")] == ["a dog", "an apple", "skis"]
    assert [plural(name) for name in ("dog", "person", "knife", "bus")] == ["dogs", "people", "knives", "buses"]


def test_a_negative_seed_is_refused():
    with pytest.raises(SettingError, match="seed=-1"):
        make_scene(-1)


def test_the_seeds_for_outside_checks_are_what_they_are():
    assert (FORBIDDEN.start, FORBIDDEN.stop) == (900_000, 1_000_000)


def test_the_picture_that_readme_asks_about_is_drawn_by_the_package():
    """`render(case.scene).save(file, optimize=True)` made it."""
    (case,) = (case for case in cases() if case.title == "A car in the street")
    with Image.open(Path(__file__).parents[2] / "examples" / "pictures" / "street.png") as kept:
        assert kept.format == "PNG"
        assert np.array_equal(np.asarray(kept), np.asarray(render(case.scene)))
