"""What a browser may send to the inspector: any body, any path, any scene, any click."""

import asyncio
import json
from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from mgap.inspector.answer_pairs import Pair, choose
from mgap.inspector.answering import check_given, check_methods
from mgap.inspector.archive import Archive
from mgap.inspector.dropped import Limits
from mgap.inspector.editor import drawn
from mgap.inspector.gallery import exhibit_at
from mgap.inspector.guard import Guard, is_loopback
from mgap.inspector.handlers import Handlers
from mgap.inspector.scene_json import plain, python_lines, scene_of
from mgap.pocket.samples import scene_of as scene_named
from mgap.pocket.scenes import Scene, make_scene
from mgap.types import Sample
from tests.fuzz.damage import TEXTS, VALUES, Refused, cases, damaged_value, json_files, outcome

BODY = {"data": [{"path": "/tmp/x.png", "meta": {"_type": "gradio.FileData"}}, "Is there a dog?"], "fn_index": 2}
SCENE = plain(make_scene(5))
PAIRS = [Pair(Sample("1", "a.png", "A dog?", "random", "yes"), "No.", "Yes.", False, True)]


def sent(place, path, body, host="127.0.0.1", pieces=1):
    """The status that a guarded page answers with."""
    said, size = [], max(1, -(-len(body) // pieces))
    parts = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    messages = [{"type": "http.request", "body": part, "more_body": n + 1 < len(parts)} for n, part in enumerate(parts)]

    async def receive():
        return messages.pop(0)

    async def send(message):
        said.append(message)

    async def page(scope, receive, send):
        heard, more = b"", True
        while more:  # an upload comes in pieces, everything else in one
            message = await receive()
            heard, more = heard + message["body"], message.get("more_body", False)
        assert heard == body
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = Guard(page, local=True, uploads=place)
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", host.encode("utf-8", "replace"))]}
    asyncio.run(guard(scope, receive, send))
    return said[0]["status"]


@given(
    json_files(BODY),
    st.sampled_from(("/gradio_api/queue/join", "/gradio_api/upload", "/", "/file=http://x", "/a/proxy=1")) | TEXTS,
    st.integers(1, 3),
)
def test_a_body_is_passed_on_as_it_came_or_refused(place, body, path, pieces):
    status = outcome(sent, place, path, body, pieces=pieces)
    assert status in (200, 400, 403, 413)


@given(damaged_value(BODY))
def test_a_file_that_was_not_dropped_never_passes(place, body):
    text = json.dumps(body).encode()
    named = [each for each in walk(body) if isinstance(each, dict) and isinstance(each.get("path"), str)]
    files = [each for each in named if isinstance(each.get("meta"), dict)]
    assert not files or outcome(sent, place, "/", text) == 403


def walk(value):
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(inner)


@given(TEXTS | st.sampled_from(("[::1", "127.0.0.1:x", "localhost:99999", "0x7f.1", "127.1", "[::ffff:127.0.0.1]")))
def test_any_host_is_this_machine_or_refused(place, host):
    assert outcome(sent, place, "/", b"", host=host) in (200, 403)
    assert outcome(is_loopback, host) in (True, False)


@cases(60)
@given(st.one_of(VALUES, damaged_value(SCENE)))
def test_a_scene_is_drawn_or_refused(data):
    scene = outcome(scene_of, data)
    if not isinstance(scene, Refused):
        assert scene_of(plain(scene)) == scene
        assert drawn(scene)["scene"] == plain(scene)
        compile(python_lines(scene), "scene", "exec")


@given(TEXTS | st.integers(0, 10**30).map(lambda seed: f"pocket_{seed}.png"))
@example("pocket_" + "1" * 5000 + ".png")
def test_a_picture_of_the_world_by_any_name(name):
    found = outcome(scene_named, name)
    assert isinstance(found, (Refused, Scene))


@given(VALUES, VALUES, VALUES)
def test_any_filter_chooses_or_is_refused(effect, group, words):
    found = outcome(choose, PAIRS, effect, group, words)
    assert isinstance(found, Refused) or set(found) <= set(PAIRS)


@given(VALUES | st.fixed_dictionaries({}, optional={"show": VALUES, "run": VALUES, "id": VALUES}))
def test_any_click_in_the_gallery_opens_a_case_or_is_refused(place, clicked):
    found = outcome(exhibit_at, Archive(place), ["pocket/llava"], clicked)
    assert isinstance(found, Refused) or found.question


@given(VALUES, VALUES)
def test_any_click_on_a_token_selects_one_that_is_there_or_none(column, token):
    handlers = Handlers(None, limits=Limits(), max_new_tokens=4, given={})
    asked = SimpleNamespace(columns=[SimpleNamespace(tokens=[1, 2])])
    found = outcome(handlers.select, asked, SimpleNamespace(column=column, token=token))
    assert found is None or found in ((0, 0), (0, 1))


@cases(10)
@given(
    st.lists(TEXTS | st.sampled_from(("mgap", "vanilla", "vcd")), max_size=8),
    st.dictionaries(TEXTS, st.dictionaries(TEXTS, VALUES)),
)
def test_any_methods_and_settings_are_checked(names, given):
    outcome(check_methods, names, {})
    outcome(check_given, given)
