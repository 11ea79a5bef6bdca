"""Several methods side by side, and MGAP's sliders from states in hand."""

import threading
from dataclasses import replace

import pytest

import mgap
from mgap.errors import SettingError
from mgap.inspector.answering import Knobs, answer, check_given, check_methods, offered, redraw, stop, unfinished
from mgap.inspector.columns import DONE, FAILED, OPEN, RUNNING, STOPPED, WAITING, measure
from mgap.pocket.scenes import render
from mgap.run.method_plans import VANILLA


@pytest.mark.long
def test_each_column_holds_what_the_model_says_under_its_method(ask, loaded, office):
    asked = ask(office, [VANILLA, "mgap", "vcd", "deco"], Knobs(alpha=1.0))
    picture = render(office.scene)
    plain = loaded.model.answer(picture, office.question, max_new_tokens=40).text
    methods = {"mgap": mgap.MGAP(loaded.prior, alpha=1.0, rank=5), "vcd": mgap.VCD(), "deco": mgap.DeCo()}
    for column in asked.columns:
        assert column.state == DONE
        if column.name == VANILLA:
            assert column.text == plain
            continue
        with loaded.model.using(methods[column.name]):
            assert column.text == loaded.model.answer(picture, office.question, max_new_tokens=40).text


def test_every_token_is_measured(ask, blue_banana):
    asked = ask(blue_banana, [VANILLA, "mgap", "vcd"])
    vanilla, ours, other = asked.columns
    assert all(m.beta == 0 for m in vanilla.tokens)
    assert all(0 < m.beta < 0.75 for m in ours.tokens)
    assert all(m.beta is None for m in other.tokens)
    for m in (*vanilla.tokens, *ours.tokens, *other.tokens):
        assert m.entropy >= 0
        assert 0 <= m.cosine <= 1
        assert m.before is not None
        assert m.after is not None
    assert [m.before for m in vanilla.tokens] == [m.after for m in vanilla.tokens]
    assert max(m.after.distance for m in other.tokens) > max(m.after.distance for m in ours.tokens)  # contrasts go farther


def test_a_method_without_a_state_has_no_place_but_is_answered(ask, blue_banana):
    asked = ask(blue_banana, ["bias"], given={"bias": {"shift": -2.0}})
    assert asked.columns[0].state == DONE
    assert all(m.after is None and m.before is not None for m in asked.columns[0].tokens)


def test_sliders_give_the_answer_that_asking_again_would(ask, office):
    asked = ask(office, [VANILLA, "mgap"])
    for knobs in (
        Knobs(alpha=0.0),
        Knobs(lam=2.0),
        Knobs(rank=1),
        Knobs(gate=False, alpha=0.3),
        Knobs(protect=False, alpha=0.5),
    ):
        moved = redraw(asked, knobs)
        if moved.columns[1].state == OPEN:
            assert unfinished(moved) == [1]
            *_, moved = answer(moved, unfinished(moved))
        fresh = ask(office, ["mgap"], knobs)
        assert moved.columns[1].text == fresh.columns[0].text
        assert moved.columns[0] == asked.columns[0]
        assert redraw(moved, knobs) is moved
        again = redraw(redraw(moved, Knobs(alpha=0.1)), knobs)  # what was seen once needs no model any more
        assert not unfinished(again)
        assert again.columns[1].ids == fresh.columns[0].ids


def test_the_first_token_of_every_strength_needs_no_model(ask, office, loaded):
    asked = ask(office, [VANILLA, "mgap"], length=1)
    with loaded.lock:  # nobody can run it
        for alpha in (0.0, 0.25, 0.5, 1.0):
            moved = redraw(asked, Knobs(alpha=alpha))
            assert not unfinished(moved)
            assert len(moved.columns[1].tokens) == 1


def test_nothing_is_redrawn_while_answers_are_being_made(ask, office):
    asked = ask(office, [VANILLA, "mgap"], length=3)
    busy = asked.with_column(0, replace(asked.columns[0], state=RUNNING))
    assert redraw(busy, Knobs(alpha=0.1)) is busy


def test_a_rank_beyond_the_priors_is_its_largest(loaded):
    assert Knobs(rank=99).method(loaded.prior).subspace.rank == loaded.prior.rank


def test_settings_of_a_case_stand_instead_of_the_sliders_and_what_has_no_slider_stays(ask, office, loaded):
    given = {"mgap": {"preset": "reference-code", "rank": 2}}
    asked = ask(office, ["mgap"], Knobs(alpha=0.1), given, length=3)
    method = asked.columns[0].method
    assert method == mgap.MGAP(loaded.prior, preset="reference-code", rank=2)
    assert Knobs.of(method) == Knobs(alpha=0.75, lam=0.6, rank=2)
    moved = redraw(asked, Knobs(alpha=0.4, lam=0.6, rank=2))
    assert moved.columns[0].method == mgap.MGAP(loaded.prior, preset="reference-code", rank=2, alpha=0.4)
    assert moved.columns[0].settings["preset"] == "reference-code"


def test_what_cannot_be_asked_here_is_refused_by_a_sentence():
    assert offered({})["opera"].startswith("opera cannot be streamed")
    assert "--set asd.steering=" in offered({})["asd"]
    assert offered({"bias": {"shift": 1.0}})["bias"] == ""
    for names, said in ((["opera"], "cannot be streamed"), ([], "no method"), (["magic"], "no method is called 'magic'")):
        with pytest.raises(SettingError, match=said):
            check_methods(names, {})
    with pytest.raises(SettingError, match="at most 6"):
        check_methods([VANILLA, "mgap", "vcd", "icd", "deco", "dola", "blind"], {})


def test_a_method_that_fails_says_why_and_the_others_answer(ask, blue_banana):
    asked = ask(blue_banana, [VANILLA, "deco", "mgap"], given={"deco": {"layers": [99]}})
    assert [column.state for column in asked.columns] == [DONE, FAILED, DONE]
    assert "99" in asked.columns[1].note


def test_stopping_marks_what_was_running_and_lets_the_next_user_on(ask, office, loaded):
    asked = ask(office, [VANILLA, "mgap"])
    fresh = replace(asked, columns=tuple(replace(column, tokens=(), state=WAITING) for column in asked.columns))
    made = answer(fresh)
    for _ in range(4):
        seen = next(made)
    assert loaded.lock.locked()
    made.close()
    assert not loaded.lock.locked()
    stopped = stop(seen)
    assert [column.state for column in stopped.columns] == [STOPPED, STOPPED]
    assert 0 < len(stopped.columns[0].tokens) < len(asked.columns[0].tokens)
    assert not [t for t in threading.enumerate() if t.name == "mgap-stream"]


def test_a_long_answer_is_said_to_be_cut(ask, office):
    asked = ask(office, [VANILLA], length=3)
    assert asked.columns[0].note == "Cut off after 3 tokens."


def test_only_answers_that_begin_alike_are_compared(ask, office):
    asked = ask(office, [VANILLA, "mgap", "vcd"])
    assert asked.columns_with_prefix(0, 0) == [0, 1, 2]
    for at in range(1, 8):
        for other in asked.columns_with_prefix(0, at):
            assert asked.columns[other].ids[:at] == asked.columns[0].ids[:at]


def test_nothing_is_measured_of_no_tokens(loaded):
    assert measure(loaded, loaded.prior, []) == ()


def test_settings_that_no_method_has_are_refused_before_anything_is_loaded():
    check_given({"vcd": {"alpha": 0.5}, "mgap": {"alpha": 0.5}})
    for given, said in (({"vcd": {"alhpa": 1}}, "--set vcd.alhpa: choose from"), ({"mgap": {"preset": "paper"}}, "mgap.alpha")):
        with pytest.raises(SettingError, match=said):
            check_given(given)
