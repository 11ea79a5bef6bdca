"""What the events do with what a browser sends, which may be anything."""

from types import SimpleNamespace

import gradio as gr
import pytest

from mgap.errors import SettingError
from mgap.inspector.answering import MAX_QUESTION_LENGTH, Knobs
from mgap.inspector.cases import AskCase
from mgap.inspector.columns import DONE, OPEN, STOPPED
from mgap.inspector.dropped import Limits
from mgap.inspector.handlers import MAX_STOPPED_SESSIONS, UNCHANGED, Handlers, errors_on_the_page
from mgap.inspector.scene_json import plain
from mgap.methods.mgap import MGAP
from mgap.run.method_plans import VANILLA

KNOBS = (0.75, 0.5, 5, True, True)


@pytest.fixture
def handlers(shelf):
    return Handlers(shelf, limits=Limits(), max_new_tokens=12, given={})


@pytest.fixture
def request_of():
    return lambda user: gr.Request(session_hash=user)


def asked_of(handlers, case, request, methods=(VANILLA, "mgap"), **other):
    given = {"name": "pocket/llava", "source": "drawn", "drawn": plain(case.scene), "dropped": None, "question": case.question}
    given |= {"methods": list(methods), "null": "black336", "prompts": "auto", **other}
    return handlers.ask(*given.values(), *KNOBS, "beta", request)


def test_a_question_is_streamed_and_ends_with_the_token_to_look_at(handlers, blue_banana, request_of):
    *_, (html, asked, look) = said = list(asked_of(handlers, blue_banana, request_of("a")))
    assert len(said) > 8
    assert all(column.state == DONE for column in asked.columns)
    assert look is not None
    assert 'aria-pressed="true"' in html


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"question": "  "}, "empty"),
        ({"methods": ["opera"]}, "opera cannot be streamed"),
        ({"methods": ["__class__"]}, "no method is called"),
        ({"drawn": {"theme": "kitchen", "things": [{"name": "gun"}]}}, "thing"),
        ({"drawn": "<script>"}, "scene"),
        ({"source": "dropped"}, "there is no picture yet"),
        ({"source": "dropped", "dropped": "/no/such.png"}, "no longer there"),
        ({"name": "pocket/other"}, "not offered"),
        ({"prompts": "/etc/hostname"}, "prompts='/etc/hostname': choose from auto, captions"),
        ({"null": "white"}, "null image='white'"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(handlers, blue_banana, request_of, other, said):
    with pytest.raises(gr.Error, match=said):
        list(asked_of(handlers, blue_banana, request_of("a"), **other))
    assert not handlers.shelf.get("pocket/llava").lock.locked()


def test_what_nobody_expected_is_a_sentence_too_and_is_printed():
    with pytest.raises(gr.Error, match=r"RuntimeError: out of memory\. The terminal") as caught, errors_on_the_page():
        raise RuntimeError("out of\n memory")
    assert caught.value.print_exception
    with pytest.raises(gr.Error) as caught, errors_on_the_page():
        raise SettingError("as expected")
    assert not caught.value.print_exception


def test_who_stops_stops_their_own_question_only(handlers, office, request_of):
    one, two = request_of("one"), request_of("two")
    handlers.begin(one)
    handlers.begin(two)
    first = asked_of(handlers, office, one)
    for _ in range(4):
        next(first)
    handlers.stop(one)
    *_, (_, stopped, _) = first
    assert [column.state for column in stopped.columns] == [STOPPED, STOPPED]
    *_, (_, whole, _) = asked_of(handlers, office, two)
    assert [column.state for column in whole.columns] == [DONE, DONE]
    handlers.begin(one)  # the next question of the first user is not stopped
    *_, (_, whole, _) = asked_of(handlers, office, one)
    assert whole.columns[0].state == DONE


def test_pages_that_are_closed_for_good_are_not_remembered_for_good(handlers, office, request_of):
    for number in range(MAX_STOPPED_SESSIONS + 50):
        handlers.stop(request_of(f"visitor {number}"))
    assert len(handlers._stopped) == MAX_STOPPED_SESSIONS
    last = request_of(f"visitor {MAX_STOPPED_SESSIONS + 49}")
    *_, (_, stopped, _) = asked_of(handlers, office, last)
    assert [column.state for column in stopped.columns] == [STOPPED, STOPPED], "the latest are"


def test_a_question_that_would_keep_the_model_from_everybody_else_is_refused(handlers, blue_banana, request_of):
    with pytest.raises(
        gr.Error, match=f"has {MAX_QUESTION_LENGTH + 1:,} characters: at most {MAX_QUESTION_LENGTH:,} are asked here"
    ):
        next(asked_of(handlers, blue_banana, request_of("a"), question="?" * (MAX_QUESTION_LENGTH + 1)))
    html, *_ = next(asked_of(handlers, blue_banana, request_of("a"), question="What? " * (MAX_QUESTION_LENGTH // 6)))
    assert "What? What?" in html


def test_a_stop_while_waiting_in_line_counts(handlers, office, request_of):
    handlers.begin(request_of("a"))
    handlers.stop(request_of("a"))
    *_, (_, asked, _) = asked_of(handlers, office, request_of("a"))
    assert [column.state for column in asked.columns] == [STOPPED, STOPPED]
    assert not any(column.tokens for column in asked.columns)


@pytest.mark.parametrize(
    "sent", [{}, {"column": 0}, {"column": "0", "token": 0}, {"column": 9, "token": 0}, {"column": 0, "token": -1}]
)
def test_a_token_that_is_not_there_is_not_taken(handlers, ask, blue_banana, sent):
    asked = ask(blue_banana, [VANILLA], length=3)
    assert handlers.select(asked, SimpleNamespace(**sent)) is None
    assert handlers.select(None, SimpleNamespace(column=0, token=0)) is None
    assert handlers.select(asked, SimpleNamespace(column=0, token=1)) == (0, 1)


def test_before_anything_is_asked_sliders_and_details_do_nothing(handlers, request_of):
    assert handlers.redraw(None, "beta", None, *KNOBS) == UNCHANGED
    assert handlers.details(None, None)[0] == ""
    assert list(handlers.finish(None, "beta", *KNOBS, request_of("a"))) == [UNCHANGED]
    assert "side by side" in handlers.recolour(None, "beta", None)


def test_a_case_is_shown_as_it_is_asked(handlers, blue_banana, loaded, request_of):
    case = AskCase(blue_banana.question, blue_banana.scene, settings={"alpha": 0.4, "rank": 2}, prior=loaded.prior)
    _, _, source, model, editor, _, question, methods, *knobs = handlers.show(case, "pocket/llava")
    assert (source, model, editor, question, methods) == (
        "drawn", "pocket/llava", blue_banana.scene, blue_banana.question, [VANILLA, "mgap"],
    )  # fmt: skip
    assert knobs == [0.4, 0.5, 2, True, True]
    *_, (_, asked, _) = handlers.ask_case(case, "pocket/llava", "black336", "auto", *KNOBS, "beta", request_of("a"))
    assert asked.columns[1].method == MGAP(loaded.prior, alpha=0.4, rank=2)
    assert Knobs.of(asked.columns[1].method) == Knobs(*knobs)


def test_no_case_opens_nothing(handlers, request_of):
    assert len(handlers.show(None, "pocket/llava")) == 13
    assert list(handlers.ask_case(None, "pocket/llava", "black336", "auto", *KNOBS, "beta", request_of("a"))) == [UNCHANGED]


def test_another_prior_cuts_the_same_states(handlers, ask, office):
    asked = ask(office, [VANILLA, "mgap"], length=12)
    _, moved, _ = handlers.change_prior(asked, "beta", None, *KNOBS, "no_image", "auto")
    assert moved.prior is not asked.prior
    assert moved.columns[1].method.prior is moved.prior
    assert moved.columns[0] == asked.columns[0]
    assert moved.columns[1].state in (DONE, OPEN)


def test_details_of_a_method_without_a_strength_say_so(handlers, ask, office):
    asked = ask(office, ["bias"], given={"bias": {"shift": -2.0}}, length=3)
    card, _, curves, _, links, code = handlers.details(asked, (0, 0))
    assert "token 1 of 3" in card
    assert "No method here has a strength" in curves
    assert "mgap-inspect.json" in links
    assert "mgap.Bias(shift=-2.0)" in code


def test_a_dropped_file_that_is_no_picture_is_taken_out_again(handlers, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"nothing")
    with pytest.MonkeyPatch.context() as patch:
        heard = []
        patch.setattr(gr, "Warning", lambda text, **_: heard.append(text))
        assert handlers.check_picture(str(tmp_path / "broken.png")) is None
    assert "broken.png" in heard[0]
    assert str(tmp_path) not in heard[0]


def test_a_slider_that_was_moved_while_answers_were_made_counts_when_they_are(handlers, ask, office, request_of):
    asked = ask(office, [VANILLA, "mgap"], length=12)
    moved = (0.0, *KNOBS[1:])
    *_, (_, finished, _) = handlers.finish(asked, "beta", *moved, request_of("b"))
    assert finished.columns[1].method.alpha == 0
    assert finished.columns[1].text == finished.columns[0].text
    assert list(handlers.finish(finished, "beta", *moved, request_of("b"))) == [UNCHANGED]  # nothing is left to do
