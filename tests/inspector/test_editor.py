"""The scene editor: what the server makes of a browser's scene. How it is clicked is tested in a browser."""

import base64
import io
import json
import re

import pytest
from PIL import Image

from mgap.errors import SettingError
from mgap.inspector.editor import SceneEditor
from mgap.inspector.scene_json import plain, scene_of
from mgap.pocket.benchmark import DEVELOPMENT, TEST
from mgap.pocket.drawing import COLOURS
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import make_scene, render
from mgap.pocket.showcase import cases, compose, describe
from mgap.pocket.themes import THEMES


@pytest.fixture(scope="module")
def editor():
    return SceneEditor(cases()[0].scene)


def pixels(source):
    kind, content = source.split(",")
    assert kind == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(content))).tobytes()


@pytest.mark.parametrize("scene", [cases()[1].scene, make_scene(100_001), compose(0, "snow")], ids=lambda s: s.theme)
def test_a_scene_set_from_python_comes_back_as_the_same_scene(editor, scene):
    value = json.loads(json.dumps(editor.postprocess(scene)))
    assert scene_of(editor.preprocess(value)) == scene
    assert pixels(value["picture"]) == render(scene).tobytes()
    assert value["alt"] == describe(scene)


def test_plain_json_may_be_set_too_and_nothing_is_an_empty_kitchen(editor):
    scene = cases()[1].scene
    assert editor.postprocess(plain(scene)) == editor.postprocess(scene)
    assert scene_of(editor.preprocess(editor.postprocess(None))) == compose(0, "kitchen")
    with pytest.raises(SettingError, match="unknown place"):
        editor.postprocess({"theme": "moon", "things": []})


@pytest.mark.parametrize("payload", [None, "", 3, [], {}, {"scene": None}, {"scene": {"theme": "moon", "things": []}}])
def test_what_a_browser_makes_up_is_refused_where_the_scene_is_read(editor, payload):
    with pytest.raises(SettingError):
        scene_of(editor.preprocess(payload))


def test_the_picture_of_a_change_is_what_the_models_are_shown(editor):
    scene = make_scene(100_002)
    assert pixels(editor.draw(plain(scene))["picture"]) == render(scene).tobytes()


@pytest.mark.parametrize("data", [None, [], {"theme": "kitchen"}, {"theme": "kitchen", "things": [{"name": "<b>"}]}])
def test_a_change_that_is_no_scene_is_answered_by_a_sentence(editor, data):
    answer = editor.draw(data)
    assert set(answer) == {"error"}
    assert answer["error"].startswith("a ")


def test_surprises_are_scenes_that_settings_may_be_chosen_on(editor):
    drawn = [scene_of(editor.surprise(None)["scene"]) for _ in range(20)]
    assert all(DEVELOPMENT <= scene.seed < TEST and scene == make_scene(scene.seed) for scene in drawn)
    assert len({scene.seed for scene in drawn}) > 10


def test_every_thing_colour_and_place_can_be_chosen(editor):
    markup = editor.html_template
    assert set(re.findall(r'data-thing="([^"]+)" data-natural="([^"]+)"', markup)) == {
        (name, OBJECTS[name].usual_colour) for name in NAMES
    }
    assert set(re.findall(r'data-colour="([^"]*)"', markup)) == {"", *COLOURS}
    assert set(re.findall(r"<option>([^<]+)</option>", markup)) == set(THEMES)
    assert set(editor.props["sprites"]) == set(NAMES)
    assert {name: place["things"][0] for name, place in editor.props["places"].items()} == {
        name: max(theme.things, key=theme.things.__getitem__) for name, theme in THEMES.items()
    }


def test_the_markup_holds_no_template_signs_of_gradio():
    markup = SceneEditor(label="<Draw & see>").html_template
    assert 'aria-label="&lt;Draw &amp; see&gt;"' in markup
    assert not [sign for sign in ("${", "{{", "`", "\\") if sign in markup]


def test_the_browser_is_told_of_both_server_functions_and_of_nothing_outside():
    config = SceneEditor(elem_id="drawn").get_config()
    assert set(config["server_fns"]) == {"draw", "surprise"}
    assert config["elem_id"] == "drawn"
    assert not re.search(r"https?://", json.dumps(config))
