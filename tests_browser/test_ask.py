"""The page that asks, used as a person uses it: against the running inspector on the pocket model, in a real Chromium."""

import base64
import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from conftest import DESK
from PIL import Image
from playwright.sync_api import Page, expect

from mgap.pocket.scenes import render
from mgap.pocket.showcase import cases

LONG = 30_000  # milliseconds that an answer may take on a busy machine


def columns(page: Page):
    return page.locator("#answers .answer-column")


def tokens(page: Page, method: str):
    return page.locator(f'#answers .answer-column[data-method="{method}"] button.token')


def text(page: Page, method: str) -> str:
    return " ".join(tokens(page, method).locator(".word").all_inner_texts())


def ask(page: Page, question: str | None = None, count: int = 2) -> None:
    """Type a question and press Ask; until all have answered, and the card of a token is there."""
    if question is not None:
        page.locator("#question textarea").fill(question)
    page.locator("#ask-button").click()
    wait(page, count)


def wait(page: Page, count: int) -> None:
    expect(page.locator('#answers .answer-column[data-state="done"]')).to_have_count(count, timeout=LONG)
    expect(page.locator("#token .token-card")).to_be_visible(timeout=LONG)


def set_knob(page: Page, name: str, value: float) -> None:
    number = page.locator(f"#{name} input[type=number]")
    number.fill(str(value))
    number.press("Enter")


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def drop(page: Page, name: str, data: bytes) -> None:
    page.get_by_role("tab", name="Drop a picture").click()
    page.locator("#dropped input[type=file]").set_input_files({"name": name, "mimeType": "image/png", "buffer": data})


def test_two_methods_answer_side_by_side(page):
    ask(page, "What color is the banana?")
    expect(columns(page)).to_have_count(2)
    assert text(page, "vanilla").startswith("The banana is")
    assert text(page, "MGAP").startswith("The banana is")
    first, second = (columns(page).nth(n).bounding_box() for n in range(2))
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] <= second["x"]


def test_answers_come_token_by_token(page):
    expect(page.locator("#answers .hint")).to_be_visible(timeout=LONG)
    page.evaluate(
        """() => { window.counts = new Set(); new MutationObserver(() =>
            window.counts.add(document.querySelectorAll('#answers button.token').length))
            .observe(document.querySelector('#answers'), {childList: true, subtree: true}); }"""
    )
    ask(page, "Describe this image.")
    counts = page.evaluate("[...window.counts]")
    assert len(counts) > 4, counts


def test_a_click_on_a_token_shows_its_numbers_and_what_was_likely(page):
    ask(page, "Describe this image.")
    tokens(page, "MGAP").nth(3).click()
    card = page.locator("#token .token-card")
    expect(card).to_have_attribute("data-number", "4", timeout=LONG)
    expect(tokens(page, "MGAP").nth(3)).to_have_attribute("aria-pressed", "true")
    for name in ("entropy", "cosine", "beta"):
        expect(card.get_by_text(name, exact=True)).to_be_visible()
    expect(card.locator(".bars li")).to_have_count(10)
    expect(page.locator("#spots svg")).to_be_visible()
    expect(page.locator("#curves svg")).to_be_visible()


def test_tokens_are_coloured_by_another_number_when_asked(page):
    ask(page, "What color is the banana?")
    before = tokens(page, "vanilla").locator(".number").all_inner_texts()
    page.get_by_role("radio", name="entropy").check()
    expect(page.locator("#answers .legend-name")).to_contain_text("entropy", timeout=LONG)
    assert tokens(page, "vanilla").locator(".number").all_inner_texts() != before


def test_sliders_and_switches_redraw_the_answer(page):
    ask(page, "Describe this image.")
    plain = text(page, "vanilla")
    set_knob(page, "alpha", 0)
    expect(columns(page).nth(1)).to_contain_text("\u03b1 0,", timeout=LONG)
    wait(page, 2)
    assert text(page, "MGAP") == plain  # at strength 0 it is plain decoding
    set_knob(page, "alpha", 6)
    expect(columns(page).nth(1)).to_contain_text("\u03b1 6,", timeout=LONG)
    wait(page, 2)
    assert text(page, "MGAP") != plain
    assert text(page, "vanilla") == plain
    page.locator("#gate input").uncheck()
    expect(columns(page).nth(1)).to_contain_text("gate off", timeout=LONG)
    wait(page, 2)
    set_knob(page, "rank", 1)
    expect(columns(page).nth(1)).to_contain_text("K 1", timeout=LONG)
    wait(page, 2)


def test_three_methods_and_a_sweep_of_chosen_words(page):
    page.get_by_role("checkbox", name="vcd").check()
    ask(page, "Is there a refrigerator in the image?", 3)
    tokens(page, "VCD").first.click()
    expect(page.locator("#token .settings")).to_contain_text("token 1 of", timeout=LONG)
    expect(page.locator("#curves .marks")).to_contain_text("VCD")
    expect(page.locator("#curves .marks")).to_contain_text("MGAP")
    assert {"Yes", "No"} <= set(page.locator("#curves svg text").all_text_contents())


def test_what_is_taken_along_is_the_same_answer(page, tmp_path):
    ask(page, "Is there a cup in the image?")
    tokens(page, "MGAP").first.click()
    expect(page.locator("#token .token-card")).to_have_attribute("data-number", "1", timeout=LONG)
    page.get_by_role("button", name="Take it along").click()
    expect(page.locator("#links a")).to_have_count(3, timeout=LONG)
    files = {}
    for link in page.locator("#links a").all():
        with page.expect_download() as taken:
            link.click()
        files[taken.value.suggested_filename] = taken.value.path().read_bytes()
    told = json.loads(files["mgap-inspect.json"])
    assert [answer["method"] for answer in told["answers"]] == ["vanilla", "mgap"]
    for name in ("mgap-inspect-state.svg", "mgap-inspect-sweep.svg"):
        assert ET.fromstring(files[name]).tag.endswith("svg")
    lines = page.evaluate("document.querySelector('#code .cm-content').cmTile.view.state.doc.toString()")
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == told["answers"][1]["text"], done.stderr


def test_a_dropped_picture_is_asked_about(page):
    drop(page, "drawn.png", png(render(cases()[1].scene).resize((320, 240))))
    expect(page.locator("#dropped img")).to_be_visible(timeout=LONG)
    ask(page, "Describe this image.")
    assert text(page, "vanilla")


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("broken.png", lambda: b"\x89PNG\r\n\x1a\n" + b"nothing like a picture" * 50, "broken.png"),
        ("huge.png", lambda: png(Image.new("1", (12_000, 8_000))), "at most 50,000,000 are taken"),
    ],
)
def test_a_picture_that_cannot_be_opened_is_refused_by_a_sentence(page, name, make, said):
    drop(page, name, make())
    toast = page.locator(".toast-body").first
    expect(toast).to_contain_text(said, timeout=LONG)
    assert "Traceback" not in toast.inner_text()
    page.locator("#ask-button").click()
    expect(page.locator(".toast-body").last).to_contain_text("there is no picture yet", timeout=LONG)


def test_a_question_without_words_and_no_method_are_refused_by_a_sentence(page):
    page.locator("#question textarea").fill("   ")
    page.locator("#ask-button").click()
    expect(page.locator(".toast-body").first).to_be_visible(timeout=LONG)
    page.locator("#question textarea").fill("What?")
    for name in ("vanilla", "mgap"):
        page.get_by_role("checkbox", name=name).uncheck()
    page.locator("#ask-button").click()
    expect(page.locator(".toast-body").filter(has_text="no method is chosen")).to_be_visible(timeout=LONG)


def test_two_users_at_once_get_their_own_answers(opened, server):
    one, two = opened(server, DESK).page, opened(server, DESK).page
    one.locator("#question textarea").fill("Describe this image.")
    two.locator("#question textarea").fill("Is there an elephant in the image?")
    one.locator("#ask-button").click()
    two.locator("#ask-button").click()
    wait(one, 2)
    wait(two, 2)
    assert "kitchen" in text(one, "vanilla")
    assert "elephant" in text(two, "vanilla")
    set_knob(one, "alpha", 0)
    expect(columns(one).nth(1)).to_contain_text("\u03b1 0,", timeout=LONG)
    expect(columns(two).nth(1)).to_contain_text("\u03b1 0.75", timeout=LONG)


def test_an_answer_can_be_stopped_and_the_next_one_asked(page):
    for name in ("haltrapper", "code", "vcd"):
        page.get_by_role("checkbox", name=name).check()
    page.locator("#question textarea").fill("Describe this image.")
    page.locator("#ask-button").click()
    expect(tokens(page, "vanilla").first).to_be_visible(timeout=LONG)
    page.locator("#stop-button").click()
    expect(page.locator('#answers .answer-column[data-state="stopped"]').first).to_be_visible(timeout=LONG)
    for name in ("haltrapper", "code", "vcd"):
        page.get_by_role("checkbox", name=name).uncheck()
    ask(page, "What color is the cup?")
    assert "cup" in text(page, "vanilla")


def test_everything_can_be_reached_and_read_by_the_keyboard(page):
    page.locator("#question textarea").focus()
    page.keyboard.press("Enter")
    wait(page, 2)
    first = tokens(page, "vanilla").first
    first.focus()
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.dataset.token")
    assert focused == "1"
    page.keyboard.press("Enter")
    expect(page.locator("#token .token-card")).to_have_attribute("data-number", "2", timeout=LONG)
    assert page.evaluate("document.activeElement.dataset.token") == "1"  # the place is kept
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_on_a_phone_nothing_runs_off_the_side(phone):
    ask(phone, "Describe this image.")
    width = phone.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
    boxes = [columns(phone).nth(n).bounding_box() for n in range(2)]
    assert boxes[1]["y"] > boxes[0]["y"]  # below each other


def test_light_and_dark_follow_the_system(opened, server):
    def paper(scheme):
        page = opened(server, DESK, color_scheme=scheme).page
        expect(page.locator("#ask-button")).to_be_visible(timeout=LONG)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))

    assert paper("light") > 600
    assert paper("dark") < 150


def test_another_null_image_cuts_along_another_prior(page):
    ask(page, "Describe this image.")
    page.get_by_role("radio", name="cosine").check()
    expect(page.locator("#answers .legend-name")).to_contain_text("cosine", timeout=LONG)
    before = columns(page).nth(1).inner_text()
    page.locator("#null input").click()
    page.get_by_role("option", name="mean_colour").click()
    expect(columns(page).nth(1)).not_to_have_text(before, use_inner_text=True, timeout=LONG)
    wait(page, 2)


def test_the_picture_in_the_trace_is_the_one_that_was_drawn(page):
    ask(page, "What color is the banana?")
    page.get_by_role("button", name="Take it along").click()
    address = page.locator("#links a").first.get_attribute("href")
    told = json.loads(base64.b64decode(address.split(",", 1)[1]))
    assert told["picture"]["scene"]["theme"] == "kitchen"
    assert {thing["name"] for thing in told["picture"]["scene"]["things"]} == {"banana", "cup", "bowl"}


def test_another_model_is_loaded_when_it_is_chosen_and_answers(page):
    page.locator("#model input").click()
    page.get_by_role("option", name="pocket/qwen3-vl").click()
    page.locator("#question textarea").fill("What color is the banana?")
    page.locator("#ask-button").click()
    expect(page.locator('#answers .answer-column[data-state="done"]')).to_have_count(2, timeout=4 * LONG)
    assert text(page, "vanilla") == "The banana is blue . end"  # it sees what pocket/llava does not
