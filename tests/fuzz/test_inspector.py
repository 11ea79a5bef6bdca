"""What a browser may send to the inspector: any body, any path, any scene, any click."""

import json
import re
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mgap.inspector import guard, request_body, server
from mgap.inspector.answer_pairs import Pair, choose
from mgap.inspector.answering import check_given, check_methods
from mgap.inspector.archive import Archive
from mgap.inspector.dropped import Limits
from mgap.inspector.editor import drawn
from mgap.inspector.gallery import exhibit_at
from mgap.inspector.guard import is_loopback
from mgap.inspector.handlers import Handlers
from mgap.inspector.password_attempts import PasswordAttempts
from mgap.inspector.scene_json import plain, python_lines, scene_of
from mgap.pocket.samples import scene_of as scene_named
from mgap.pocket.scenes import Scene, make_scene
from mgap.types import Sample
from tests.fuzz.damage import TEXTS, VALUES, Refused, cases, damaged_value, json_files, outcome
from tests.inspector import visits
from tests.inspector.visits import API

BODY = {"data": [{"path": "/tmp/x.png", "meta": {"_type": "gradio.FileData"}}, "Is there a dog?"], "fn_index": 2}
JOIN = f"{API}/queue/join"
SCENE = plain(make_scene(5))
PAIRS = [Pair(Sample("1", "a.png", "A dog?", "random", "yes"), "No.", "Yes.", False, True)]


@pytest.fixture(scope="module")
def page():
    """The real application around a small page, with a password, little room and no patience."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "MAX_BODY_BYTES", 20_000)
        patch.setattr(request_body, "SILENT_SECONDS", 0.001)
        patch.setattr(server, "PasswordAttempts", lambda: PasswordAttempts(clock=count(step=1000).__next__))  # nobody waits
        with visits.inside(password=visits.PASSWORD) as asked:
            yield asked


def sent(page, path, body, pieces=1):
    """The status of an answer, and whether Gradio was asked."""
    size = max(1, -(-len(body) // pieces))
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    page.reached.clear()
    kind = visits.FILES if path.endswith("upload") else visits.JSON
    status, _ = page.request("POST", path, *parts, content_type=kind, cookie=page.cookie())
    return status, bool(page.reached)


@given(json_files(BODY), st.sampled_from((JOIN, f"{API}/upload", f"{API}/run/answer")), st.integers(1, 3))
def test_a_body_is_passed_on_as_it_came_or_refused(page, body, path, pieces):
    status, is_reached = outcome(sent, page, path, body, pieces)
    if is_reached:
        assert page.read == body or (
            path.endswith("upload") and body.startswith(page.read)
        )  # that is read up to its first fault
    else:
        assert status in (400, 403, 413)


@given(damaged_value(BODY))
def test_a_file_that_was_not_dropped_never_passes(page, body):
    text = json.dumps(body).encode()
    named = [each for each in walk(body) if isinstance(each, dict) and isinstance(each.get("path"), str)]
    files = [each for each in named if isinstance(each.get("meta"), dict)]
    found = outcome(sent, page, JOIN, text)
    assert not files or found == (403 if isinstance(body, dict) else 400, False)


def walk(value):
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(inner)


@given(TEXTS | st.sampled_from(("[::1", "127.0.0.1:x", "localhost:99999", "0x7f.1", "127.1", "[::ffff:127.0.0.1]")))
def test_any_host_is_this_machine_or_refused(page, host):
    assert outcome(page.request, "GET", "/favicon.ico", host=host)[0] in (200, 403)
    assert outcome(is_loopback, host) in (True, False)


SITES = {  # headers by which a browser tells whose page sends something, and whether it is ours
    (): True,
    (("origin", visits.OWN),): True,
    (("origin", visits.OWN), ("sec_fetch_site", "same-origin")): True,
    (("origin", "https://evil.example"),): False,
    (("origin", "null"),): False,
    (("sec_fetch_site", "cross-site"),): False,
    (("origin", visits.OWN), ("sec_fetch_site", "same-site")): False,
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get")
WHOLE, LARGE, STALLED = "whole", "large", "stalled"


def paths_of(page):
    """Every path of the application's own table, and some that are not in it."""
    filled = {"path": "index.js", "session_hash": "one", "api_name": "upload", "path_or_url": "/tmp/a.png"}
    routes = [
        each for route in page.gradio.routes for each in getattr(getattr(route, "original_router", None), "routes", [route])
    ]
    own = [re.sub(r"{(\w+)(:\w+)?}", lambda name: filled.get(name[1], "1"), route.path) for route in routes]
    assert len(own) > 60, "the table of Gradio's routes is read wrongly"
    return sorted({*own, *(path for _, path in visits.REQUESTS), "//", "/upload", f"{API}/upload/upload", f"{JOIN}/"})


def expected(method, path, is_own, is_in, body):
    """The status of a refusal, if it is refused, and whether Gradio hears of it."""
    if (method, path) not in visits.REQUESTS:
        return 405 if any(path == known for _, known in visits.REQUESTS) else 404, False
    kind, is_open = visits.REQUESTS[method, path]
    if not is_own:
        return 403, False
    if not (is_open or is_in):
        return 401, False
    if not kind or body == WHOLE:
        return None, True
    return {LARGE: 413, STALLED: 408}[body], kind == visits.FILES  # an upload is handed on while it comes


@given(
    st.data(),
    st.sampled_from(METHODS),
    st.sampled_from(list(SITES)),
    st.booleans(),
    st.sampled_from((WHOLE, LARGE, STALLED)),
)
def test_any_method_on_any_path_is_answered_as_the_table_says(page, data, method, site, is_in, body):
    path = data.draw(st.sampled_from(paths_of(page)) | TEXTS.map(lambda text: "/" + text.replace("?", "")))  # ? ends a path
    kind, _ = visits.REQUESTS.get((method, path), (visits.JSON, False))
    pieces = [visits.body_of(kind)[:20] if body == STALLED else visits.body_of(kind)]
    if body == LARGE:
        pieces = [visits.body_of(visits.FILES)[:70], b"x" * 70_000]
    page.reached.clear()
    cookie = page.cookie() if is_in else None
    status, _ = page.request(
        method, path, *pieces, stalls=body == STALLED, content_type=kind or None, cookie=cookie, **dict(site)
    )
    refusal, is_heard = expected(method, path, SITES[site], is_in, body)
    assert bool(page.reached) == is_heard
    assert refusal is None or status == refusal


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
