"""Whoever generates notes what is asked: answers, streams, traces, and every part of a run."""

from contextlib import contextmanager

import pytest

import mgap
from mgap.backbones.asked_rows import Asked, asked_rows
from mgap.decoding.step_by_step import step_by_step
from mgap.errors import PromptError
from mgap.pocket.samples import SceneRenderer
from mgap.run.benchmarks import read_benchmark
from mgap.run.evaluate import answer_first_words, answer_in_full
from tests.methods.builders import build

QUESTIONS = ["What is in the picture?", "Is there a dog?", "Why?"]


@contextmanager
def listening(model):
    """What is noted in each forward that reads a prompt, one list of rows each."""
    heard, own = [], model.backbone.model

    def listen(_model, _args, kwargs):
        if kwargs["input_ids"].shape[1] > 1:
            heard.append(list(asked_rows(own, len(kwargs["input_ids"]))))

    handle = own.register_forward_pre_hook(listen, with_kwargs=True)
    try:
        yield heard
    finally:
        handle.remove()


def told(heard):
    return [[(row.name, row.prompt) for row in rows] for rows in heard]


@pytest.mark.parametrize("options", [{}, {"static_cache": True}], ids=["dynamic", "static"])
def test_an_answer_notes_its_picture_and_prompt(model, picture_file, picture, options):
    with listening(model) as heard:
        model.answer(picture_file, QUESTIONS[0], max_new_tokens=2, **options)
    assert told(heard) == [[("street.png", QUESTIONS[0])]]
    assert heard[0][0].picture == picture
    assert asked_rows(model.backbone.model, 1) == ()


def test_a_stream_and_a_trace_note_theirs_in_their_own_thread(model, picture_file):
    with listening(model) as heard:
        list(model.stream(picture_file, QUESTIONS[0], max_new_tokens=2))
        list(step_by_step(model, mgap.VCD(), picture_file, QUESTIONS[1], max_new_tokens=2))
    assert told(heard) == [[("street.png", question)] for question in QUESTIONS[:2]]


def test_batches_note_their_own_rows_and_beams_repeat_them(model, picture, picture_file):
    images = [picture_file, picture, None]
    expected = list(zip(["street.png", None, None], QUESTIONS, strict=True))
    with listening(model) as heard:
        list(model.answers(images, QUESTIONS, batch_size=2, max_new_tokens=2))
        list(model.answers(images[:2], QUESTIONS[:2], max_new_tokens=2, num_beams=2))
    assert told(heard) == [expected[:2], expected[2:], [row for row in expected[:2] for _ in range(2)]]


def test_a_shared_prefill_reads_pictures_for_several_rows_and_notes_none(model, picture):
    with listening(model) as heard:
        list(model.answers([picture] * 2, QUESTIONS[:2], max_new_tokens=2, prefill="shared"))
    assert told(heard) == [[], [(None, question) for question in QUESTIONS[:2]]]


def test_callers_that_know_more_of_the_rows_say_it(model, picture):
    rows = [Asked(picture, "One?", "a/1.png"), Asked(picture, "Two?", "b/2.png")]
    with listening(model) as heard:
        list(model.answers([picture] * 2, ["One?", "Two?"], asked=rows, batch_size=1, max_new_tokens=1))
    assert told(heard) == [[("a/1.png", "One?")], [("b/2.png", "Two?")]]
    with pytest.raises(PromptError, match="asked has 1 rows, and there are 2 prompts"):
        next(model.answers([picture] * 2, ["One?", "Two?"], asked=rows[:1]))


def test_a_run_knows_pictures_by_their_names_in_the_benchmark(answer, tiny_model, tmp_path):
    with listening(tiny_model) as heard:
        run, _ = answer(tmp_path / "run", scenes=1, methods=["vcd"])
    assert heard
    assert all(heard)
    named = {(sample.image, sample.prompt) for sample in run.samples}
    assert {row for rows in told(heard) for row in rows} == named
    assert heard[0][0].picture == SceneRenderer()(heard[0][0].name)


def test_what_is_evaluated_in_memory_is_noted_too(make_config, tiny_model):
    asked = read_benchmark(make_config(scenes=1))
    methods = {"weak": mgap.VCD(alpha=1.0), "strong": mgap.VCD(alpha=2.0), "alone": build("deco", None)}
    named = {(sample.image, sample.prompt) for sample in asked.samples}
    with listening(tiny_model) as heard:
        answer_first_words(tiny_model, asked, methods, batch_size=4)
    assert {row for rows in told(heard) for row in rows} == named
    with listening(tiny_model) as heard:
        answer_in_full(tiny_model, asked, {"vanilla": None}, max_new_tokens=1)
    assert {row for rows in told(heard) for row in rows} == named


@pytest.mark.parametrize("along", ["first", "answers"])
def test_departures_note_what_they_ask(answer, tiny_model, tmp_path, along):
    keys = {"benchmark": "departure", "methods": ["vcd"], "departure": {"along": along, "k": 3, "strengths": [1]}}
    with listening(tiny_model) as heard:
        run, _ = answer(tmp_path / "run", **keys)
    bank_is_read_plainly = [rows for rows in heard if rows]
    assert {row for rows in told(bank_is_read_plainly) for row in rows} == {(s.image, s.prompt) for s in run.samples}
