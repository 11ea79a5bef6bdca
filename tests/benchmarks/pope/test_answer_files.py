"""Answers in the published forms, paired with their questions; what does not belong together is refused."""

import json

import pytest

from mgap.benchmarks.pope.answer_files import read_answers
from mgap.benchmarks.yesno_questions import YesNoQuestion
from mgap.errors import BenchmarkError, SettingError

QUESTIONS = [
    YesNoQuestion("1", "a.jpg", "Is there a dog in the image?", "yes"),
    YesNoQuestion("2", "a.jpg", "Is there an apple in the image?", "no"),
    YesNoQuestion("3", "b.jpg", "Is there a cat in the image?", "yes"),
]


@pytest.fixture
def answers(tmp_path):
    def write(*records):
        path = tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def texts(path, missing="refuse"):
    return [(question.id, text) for question, text in read_answers(path, QUESTIONS, missing)[0]]


def test_answers_are_paired_by_id_in_any_order(answers):
    path = answers({"question_id": 3, "text": "c"}, {"question_id": "1", "answer": "a"}, {"question_id": 2, "text": ""})
    assert texts(path) == [("1", "a"), ("2", ""), ("3", "c")]
    assert read_answers(path, QUESTIONS)[1] == []


def test_answers_of_the_original_project_are_paired_by_position(answers):
    records = [{"question": question.text, "answer": str(place)} for place, question in enumerate(QUESTIONS)]
    records[1]["question"] = "Is there an apple in the imange?\nAnswer the question using a single word or phrase."
    assert texts(answers(*records)) == [("1", "0"), ("2", "1"), ("3", "2")]
    assert texts(answers(*({"answer": record["answer"]} for record in records))) == [("1", "0"), ("2", "1"), ("3", "2")]


def test_answers_at_the_wrong_place_are_refused(answers):
    records = [{"question": question.text, "answer": "Yes"} for question in reversed(QUESTIONS)]
    with pytest.raises(BenchmarkError, match="2 answers are to another question than the one at their place, first line 1"):
        texts(answers(*records))
    with pytest.raises(BenchmarkError, match="4 answers without ids to 3 questions"):
        texts(answers(*[{"answer": "Yes"}] * 4))


def test_missing_answers_are_refused_counted_as_wrong_or_left_out(answers):
    path = answers({"question_id": 2, "text": "No"})
    with pytest.raises(BenchmarkError, match="2 of 3 questions have no answer, first question_id '1'"):
        texts(path)
    assert texts(path, "wrong") == [("1", None), ("2", "No"), ("3", None)]
    assert texts(path, "skip") == [("2", "No")]
    assert "2 of 3 questions have no answer and are left out" in read_answers(path, QUESTIONS, "skip")[1][0]
    with pytest.raises(SettingError, match="refuse, wrong, skip"):
        texts(path, "ignore")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"question_id": 9, "text": "x"}, {"question_id": 1, "text": "x"}],
            "1 of 2 answers .* not asked, first question_id '9'",
        ),
        (
            [{"question_id": 1, "text": "x"}, {"question_id": 1, "text": "y"}],
            "1 question ids .* first '1' in line 1 and line 2",
        ),
        ([{"question_id": 1, "text": "x"}, {"answer": "y"}], "1 of 2 answers have no question_id, first line 2"),
        ([{"question_id": 1, "text": None}], "line 1: no text among 'question_id', 'text'"),
        ([{"question_id": 1, "reply": "x"}], "line 1: no text among 'question_id', 'reply'"),
    ],
)
def test_answers_that_do_not_belong_are_refused(answers, records, message):
    with pytest.raises(BenchmarkError, match=message):
        texts(answers(*records))


def test_a_last_line_that_was_cut_off_is_refused(answers):
    path = answers(*({"question_id": q.id, "text": "Yes"} for q in QUESTIONS))
    path.write_text(path.read_text()[:-6])
    with pytest.raises(BenchmarkError, match="line 3: the last line is cut off"):
        texts(path)
