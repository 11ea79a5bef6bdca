"""Answers in every form that projects write, paired by task, picture and wording; what does not belong together is refused."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from mgap.benchmarks.mme.paired_answers import pair_answers, read_given, write_official
from mgap.benchmarks.mme.questions import ALL, ENDING, find_questions, read_questions
from mgap.errors import BenchmarkError, MgapError, SettingError
from tests.benchmarks.mme.made import write_questions

TASKS = ("existence", "color")


@pytest.fixture
def questions(tmp_path):
    files = find_questions(write_questions(tmp_path / "data", TASKS, pictures=2), TASKS)
    return [question for task, path in files.items() for question in read_questions(path, task)]


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def own(questions):
    """One answer each that says which question it is to."""
    return [
        {"task": q.image.split("/")[0], "image": q.image.split("/")[1], "question": q.text, "text": f"to {q.id}"}
        for q in questions
    ]


def llava(questions):
    """Both questions of a picture have one id, and another ending."""
    after = "\nAnswer the question using a single word or phrase."
    return [
        {
            "question_id": q.image.replace(".jpg", ".txt"),
            "prompt": q.text.removesuffix(ENDING).strip() + after,
            "text": f"to {q.id}",
        }
        for q in questions
    ]


def of_a_run(questions):
    return [{"id": q.id, "text": f"to {q.id}", "tokens": 3} for q in questions]


@pytest.mark.parametrize("form", [own, llava, of_a_run])
def test_answers_are_paired_in_any_order(questions, tmp_path, form):
    records = form(questions)
    random.Random(0).shuffle(records)
    path = lines(tmp_path / "answers.jsonl", records)
    pairs, notes = pair_answers(path, questions, read_given(path))
    assert [(question.id, text) for question, text in pairs] == [(q.id, f"to {q.id}") for q in questions]
    assert notes == []


def test_the_shards_of_a_run_are_read_together_and_failures_are_no_answers(questions, tmp_path):
    folder = tmp_path / "vanilla"
    folder.mkdir()
    lines(folder / "0-of-2.jsonl", of_a_run(questions[:4]))
    lines(folder / "1-of-2.jsonl", [*of_a_run(questions[4:-1]), {"id": questions[-1].id, "text": "", "failed": "no memory"}])
    given = read_given(folder)
    assert len(given) == len(questions) - 1
    with pytest.raises(BenchmarkError, match=r"1 of 8 questions have no answer, first 'color/0001\.jpg/2'"):
        pair_answers(folder, questions, given)


def test_what_we_write_in_the_official_form_is_read_unchanged(questions, tmp_path):
    pairs = [(question, ("Yes", "  no", "\n\nYes\tit\r\nis", "")[number % 4]) for number, question in enumerate(questions)]
    paths = write_official(tmp_path / "official", pairs)
    assert [path.name for path in paths] == ["existence.txt", "color.txt"]
    assert paths[0].read_text().splitlines()[1] == f"0000.jpg\tIs existence 0 gone? {ENDING}\tNo\t  no"
    folded = [(question, text.replace("\n", " ").replace("\t", " ").replace("\r", " ")) for question, text in pairs]
    assert pair_answers("official", questions, read_given(tmp_path / "official")) == (folded, [])
    again = write_official(tmp_path / "again", folded)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_missing_answers_are_refused_counted_as_wrong_or_leave_their_picture_out(questions, tmp_path):
    path = lines(tmp_path / "answers.jsonl", own(questions)[1:])
    given = read_given(path)
    with pytest.raises(BenchmarkError, match=r"1 of 8 questions have no answer, first 'existence/0000\.jpg/1'"):
        pair_answers(path, questions, given)
    pairs, (note,) = pair_answers(path, questions, given, "wrong")
    assert (len(pairs), pairs[0][1]) == (8, "")
    assert note.endswith("1 of 8 questions have no answer and are counted as wrong")
    pairs, (note,) = pair_answers(path, questions, given, "skip")
    assert [question.id for question, _ in pairs] == [question.id for question in questions[2:]]
    assert note.endswith("1 of 8 questions have no answer and are left out, with their 1 pictures")
    with pytest.raises(SettingError, match="choose from refuse, wrong, skip"):
        pair_answers(path, questions, given, "ignore")


def test_a_second_answer_and_an_answer_to_another_question_are_refused(questions, tmp_path):
    records = own(questions)
    path = lines(tmp_path / "answers.jsonl", [*records, {**records[0], "image": "0000.png", "text": "No"}])
    with pytest.raises(BenchmarkError, match=r"line 9: existence/0000\.jpg/1 is answered already in .*line 1"):
        pair_answers(path, questions, read_given(path))
    path = lines(tmp_path / "answers.jsonl", [*records, {**records[0], "question": "Is it a third one?"}])
    with pytest.raises(BenchmarkError, match="line 9: answers a question that is not asked"):
        pair_answers(path, questions, read_given(path))


def test_questions_that_answers_cannot_tell_apart_are_refused(questions, tmp_path):
    path = lines(tmp_path / "answers.jsonl", own(questions))
    alike = questions[0]._replace(id="existence/0000.png/1", image="existence/0000.png")
    with pytest.raises(BenchmarkError, match="one wording and one picture's name"):
        pair_answers(path, [*questions, alike], read_given(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0000.jpg\tIs color 0 there? Please answer yes or no.\tYes\n", "line 1: 3 columns, not 4"),
        ("0000.jpg\tIs color 0 there? Please answer yes or no.\tYes\tYes\tor no\n", "line 1: 5 columns, not 4"),
        ("0000.jpg\tIs color 0 there? Please answer yes or no.\tYes\tYes\nit is\n", "line 2: 1 columns, not 4"),
        ("0000.jpg\tIs color 0 there? Please answer yes or no.\tNo\tYes\n", "line 1: the label is no, and MME's is yes"),
    ],
)
def test_an_official_file_with_a_tab_or_a_line_break_too_many_is_refused(questions, tmp_path, text, message):
    (tmp_path / "color.txt").write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        pair_answers(tmp_path, questions, read_given(tmp_path), "wrong")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"task": "colour", "image": "a.jpg", "question": "A?", "text": "Yes"}, "'colour' is no task of MME"),
        ({"task": "color", "image": "a.jpg", "question": "A?"}, "no text among 'task', 'image', 'question'"),
        ({"task": "color", "question": "A?", "text": "Yes"}, "no 'image' among"),
        ({"question_id": "color/a.jpg", "text": "Yes"}, "no 'prompt' among"),
        ({"question_id": ".", "prompt": "A?", "text": "Yes"}, "'.' is no task of MME"),
        ({"id": "color/a.jpg/1", "failed": "no memory"}, "no answer in it; an answer has task"),
        ({"text": "Yes"}, "no 'id' among 'text'; an answer has task, image, question and text"),
    ],
)
def test_a_record_of_another_form_is_refused(tmp_path, record, message):
    with pytest.raises(BenchmarkError, match=message):
        read_given(lines(tmp_path / "answers.jsonl", [record]))


def test_a_folder_has_one_form(questions, tmp_path):
    with pytest.raises(BenchmarkError, match=r"neither TASK\.txt nor JSON lines in it"):
        read_given(tmp_path)
    write_official(tmp_path, [(question, "Yes") for question in questions])
    lines(tmp_path / "answers.jsonl", own(questions))
    with pytest.raises(BenchmarkError, match=r"both TASK\.txt and JSON lines in it"):
        read_given(tmp_path)


CELLS = st.sampled_from(
    ["0000.jpg", "Is color 0 there?", "Yes", "no", "", "\t", "\n", "\r", "\N{LINE SEPARATOR}", "color", "a/b"]
)
RECORDS = st.dictionaries(
    st.sampled_from(["id", "task", "image", "question", "question_id", "prompt", "text", "failed"]),
    st.one_of(CELLS, st.text(max_size=4), st.integers(), st.none()),
)


@drawn(
    st.one_of(
        st.binary(max_size=60),
        st.lists(CELLS).map(lambda cells: "\t".join(cells).encode()),
        st.lists(RECORDS).map(lambda records: "\n".join(map(json.dumps, records)).encode()),
    )
)
def test_any_bytes_are_answers_or_one_of_our_errors(tmp_path_factory, data):
    folder = Path(tmp_path_factory.getbasetemp()) / "any"
    folder.mkdir(exist_ok=True)
    for path, read in ((folder / "color.txt", folder), (folder.parent / "any.jsonl", folder.parent / "any.jsonl")):
        path.write_bytes(data)
        with suppress(MgapError):
            assert all(each.task in ALL for each in read_given(read))
