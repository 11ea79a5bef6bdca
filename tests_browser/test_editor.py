"""The scene editor in a real browser: what is clicked is what is drawn, shown, and handed to the page's handlers."""

import json
import sys

import pytest
from conftest import Served

PAGE = """
import json
import time

from mgap.inspector.server import bind, private_uploads, serve

with private_uploads(), bind("127.0.0.1", 0) as door:
    import gradio as gr

    from mgap.inspector import theme
    from mgap.inspector.editor import SceneEditor
    from mgap.inspector.scene_json import plain, scene_of
    from mgap.pocket.showcase import cases

    with gr.Blocks() as page:
        with gr.Tab("Draw"):
            editor = SceneEditor(elem_id="editor")
        with gr.Tab("Other"):
            gr.Markdown("Another tab")
        opened, asked = gr.Button("Open the blue banana"), gr.Button("Ask")
        told = gr.Textbox(elem_id="told")
        changes = gr.Number(0, elem_id="changes")
        opened.click(lambda: cases()[1].scene, None, editor, api_visibility="private")
        asked.click(lambda value: f"{time.time()} {json.dumps(plain(scene_of(value)))}", editor, told, api_visibility="private")
        editor.change(lambda n: n + 1, changes, changes, api_visibility="private")
    serve(
        page,
        door,
        host="127.0.0.1",
        password=None,
        max_bytes=2**20,
        open_browser=False,
        ready=lambda address: print(address, flush=True),
        css=theme.static("editor.css"),
    )
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.py").write_text(PAGE)
    served = Served([sys.executable, str(folder / "page.py")], folder / "log.txt", r"^(http://\S+)$")
    yield f"{served.address}/"
    assert served.end() == 0, served.log


@pytest.fixture
def page(browser, address):
    """A new tab with the editor in it; errors in the browser's console fail the test, and so does a request to elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    opened, wrong = context.new_page(), []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    opened.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else wrong.append(r.url))
    opened.set_default_timeout(10_000)
    opened.goto(address)
    opened.wait_for_selector(".scene-canvas img[src^='data:image/png']")
    yield opened
    context.close()
    assert not wrong


def click(page, x, y):
    box = page.locator(".scene-canvas").bounding_box()
    page.locator(".scene-canvas").click(position={"x": x * box["width"], "y": y * box["height"]})
    drawn(page)


def choose(page, name):
    page.get_by_role("button", name=name, exact=True).click()
    drawn(page)


def drawn(page):
    page.wait_for_selector(".scene-canvas:not([aria-busy='true'])")


def standing(page):
    return page.locator(".scene-things button").all_inner_texts()


def asked(page):
    """The scene that a handler of the page gets."""
    before = page.locator("#told textarea").input_value()
    choose(page, "Ask")
    page.wait_for_function("before => document.querySelector('#told textarea').value !== before", arg=before)
    return json.loads(page.locator("#told textarea").input_value().split(" ", 1)[1])


def test_things_are_put_recoloured_undone_and_removed(page):
    empty = page.locator(".scene-canvas img").get_attribute("src")
    for name, x, y in [("banana", 0.25, 0.3), ("cup", 0.75, 0.3), ("elephant", 0.5, 0.75)]:
        choose(page, name)
        click(page, x, y)
    assert standing(page) == ["yellow banana", "white cup", "gray elephant"]
    click(page, 0.25, 0.3)
    assert page.locator(".scene-things [aria-pressed='true']").inner_text() == "yellow banana"
    choose(page, "blue")
    assert standing(page) == ["blue banana", "white cup", "gray elephant"]
    assert "a blue banana (top left)" in page.locator(".scene-canvas img").get_attribute("alt")
    scene = asked(page)
    assert [(t["name"], t["colour"]) for t in scene["things"]] == [("banana", "blue"), ("cup", "white"), ("elephant", "gray")]
    assert abs(scene["things"][0]["x"] - 0.25) < 0.01
    choose(page, "Undo")
    assert standing(page)[0] == "yellow banana"
    click(page, 0.75, 0.3)
    page.keyboard.press("Delete")
    drawn(page)
    assert standing(page) == ["yellow banana", "gray elephant"]
    choose(page, "Clear")
    assert standing(page) == []
    assert page.locator(".scene-canvas img").get_attribute("src") == empty
    page.wait_for_function("Number(document.querySelector('#changes input').value) >= 1")


def test_a_thing_is_dragged_and_the_picture_follows(page):
    choose(page, "bowl")
    click(page, 0.3, 0.3)
    before = page.locator(".scene-canvas img").get_attribute("src")
    box = page.locator(".scene-canvas").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.6 * box["height"], steps=8)
    page.mouse.up()
    drawn(page)
    (bowl,) = asked(page)["things"]
    assert (bowl["x"], bowl["y"]) == (pytest.approx(0.7, abs=0.02), pytest.approx(0.6, abs=0.02))
    assert page.locator(".scene-canvas img").get_attribute("src") != before
    choose(page, "Undo")  # one step, however many places it passed
    assert asked(page)["things"][0]["x"] == pytest.approx(0.3, abs=0.01)


def test_everything_can_be_done_with_keys(page):
    page.get_by_role("searchbox", name="Find a thing").focus()
    page.keyboard.type("banan")
    assert page.locator("[data-thing]:visible").all_inner_texts() == ["banana"]
    page.keyboard.press("Enter")
    assert page.locator("[data-thing][aria-pressed='true']").all_inner_texts() == ["banana"]
    page.locator(".scene-canvas").focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowLeft")
    assert page.locator(".scene-cross").get_attribute("hidden") is None
    page.keyboard.press("Enter")
    drawn(page)
    assert standing(page) == ["yellow banana"]
    for _ in range(2):
        page.keyboard.press("Shift+ArrowUp")
        drawn(page)
    assert page.evaluate("document.activeElement.className").startswith("scene-canvas")
    thing = asked(page)["things"][0]
    assert (thing["x"], thing["y"]) == (pytest.approx(0.25, abs=0.01), pytest.approx(1 / 3, abs=0.01))
    page.get_by_role("button", name="blue", exact=True).focus()
    page.keyboard.press("Enter")
    drawn(page)
    assert standing(page) == ["blue banana"]
    page.locator(".scene-canvas").focus()
    page.keyboard.press("Delete")
    drawn(page)
    assert standing(page) == []
    page.keyboard.press("Control+z")
    drawn(page)
    assert standing(page) == ["blue banana"]


def test_an_eighth_thing_is_refused_by_a_sentence_and_a_surprise_is_another_scene(page):
    page.get_by_role("combobox", name="Place").select_option("farm")
    drawn(page)
    assert page.locator("[data-usual] [data-thing]").first.inner_text() == "cow"
    choose(page, "cow")
    for number in range(8):
        click(page, 0.13 + 0.25 * (number % 4), 0.2 + 0.6 * (number // 4))
    assert len(standing(page)) == 7
    page.get_by_text("A scene holds at most 7 things: remove one first.").wait_for()
    choose(page, "Surprise me")
    page.get_by_text("A scene of the pocket world, drawn at random.").wait_for()
    drawn(page)
    scene = asked(page)
    assert 100_000 <= scene["seed"] < 200_000
    assert len(standing(page)) == len(scene["things"])


def test_the_page_opens_a_scene_and_the_editor_goes_on_from_there(page):
    choose(page, "Open the blue banana")
    page.get_by_role("button", name="blue banana", exact=True).wait_for()
    choose(page, "blue banana")
    choose(page, "red")
    assert standing(page)[0] == "red banana"
    page.get_by_role("tab", name="Other").click()
    page.get_by_role("tab", name="Draw").click()
    assert standing(page)[0] == "red banana"
    assert asked(page)["things"][0]["colour"] == "red"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_runs_over_the_edge_of_a_phone(browser, address, theme):
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, color_scheme=theme)
    opened = context.new_page()
    opened.goto(f"{address}?__theme={theme}")
    opened.wait_for_selector(".scene-canvas img[src^='data:image/png']")
    opened.get_by_role("button", name="cup", exact=True).tap()
    opened.locator(".scene-canvas").tap(position={"x": 100, "y": 100})
    drawn(opened)
    assert standing(opened) == ["white cup"]
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
