"""`mgap score mme` and `mgap fetch mme` as a user types them, against the figures of the projects' own scripts."""

import json
import random
import shutil
import zipfile

import pytest

from mgap.benchmarks.mme.questions import ALL, HALLUCINATION
from tests.benchmarks.mme.made import write_questions

FIXTURES = ("real_lavin13b", "real_llava15_13b", "made_up_edges_hallucination", "all_yes_hallucination")
NEAR = {"rel": 0, "abs": 1e-9}


@pytest.fixture
def score(run, shared):
    """Score answers; returns what is printed as JSON."""

    def call(answers, *words):
        status, out, err = run("score", "mme", "--answers", answers, "--data", shared / "data" / "mme", "--json", *words)
        assert status == 0, err
        return json.loads(out)

    return call


@pytest.fixture
def fixture(shared):
    folder = shared / "fixtures" / "benchmarks" / "mme"
    return lambda name: (
        folder / f"{name}.answers.jsonl", json.loads((folder / f"{name}.expected.json").read_text())["expected"],
    )  # fmt: skip


@pytest.mark.parametrize("name", FIXTURES)
def test_the_official_figures_with_all_decimals(score, fixture, name):
    answers, expected = fixture(name)
    found = score(answers)
    assert list(found["tasks"]) == [task for task in ALL if task in expected["official"]["tasks"]]
    for task, figures in expected["official"]["tasks"].items():
        unparsed = figures.pop("other")
        assert found["tasks"][task]["unparsed"] == unparsed
        assert {key: found["tasks"][task][key] for key in figures} == pytest.approx(figures, **NEAR), task
    assert found["totals"] == pytest.approx(expected["official"]["totals"], **NEAR)
    assert found["incomplete"].keys() | found["totals"].keys() == {
        "object_level", "attribute_level", "hallucination", "perception", "cognition",
    }  # fmt: skip


@pytest.mark.parametrize("parser", ["lmms_eval", "vlmevalkit"])
@pytest.mark.parametrize("name", FIXTURES)
def test_the_scores_under_the_other_readers(score, fixture, name, parser):
    answers, expected = fixture(name)
    found = score(answers, "--parser", parser)
    scores = {task: figures["score"] for task, figures in found["tasks"].items()}
    assert scores == pytest.approx(expected[parser]["scores"], **NEAR)
    assert found["totals"]["hallucination"] == pytest.approx(expected[parser]["hallucination"], **NEAR)


def test_on_bare_words_our_own_reader_agrees(score, fixture):
    answers, _ = fixture("all_yes_hallucination")
    ours = score(answers, "--parser", "first-sentence")
    assert {**ours, "parser": "mme"} == score(answers)
    assert all(task["yes_ratio"] == 1 for task in ours["tasks"].values())


def test_shuffled_lines_and_the_official_form_give_the_same(score, fixture, tmp_path):
    answers, _ = fixture("real_lavin13b")
    rows = answers.read_text().splitlines(keepends=True)
    random.Random(1).shuffle(rows)
    (tmp_path / "shuffled.jsonl").write_text("".join(rows))
    whole = score(tmp_path / "shuffled.jsonl", "--write-official", tmp_path / "official")
    assert whole == score(answers) == score(tmp_path / "official")
    assert sorted(path.stem for path in (tmp_path / "official").iterdir()) == sorted(ALL)


def test_the_official_answers_of_the_archive_are_read_and_written_as_they_are(score, shared, tmp_path):
    with zipfile.ZipFile(shared / "data" / "mme" / "eval_tool.zip") as archive:
        archive.extractall(tmp_path)
    theirs = tmp_path / "eval_tool" / "LaVIN"
    found = score(theirs, "--write-official", tmp_path / "ours")
    assert (found["unparsed"], found["totals"]["perception"]) == (12, pytest.approx(963.61, abs=0.005))
    for task in ALL:
        assert (tmp_path / "ours" / f"{task}.txt").read_text().split("\n") == (
            [*(theirs / f"{task}.txt").read_text().removesuffix("\n").split("\n"), ""]
        ), task


def test_fetching_unpacks_the_questions_and_nothing_else(run, shared, tmp_path):
    shutil.copy(shared / "data" / "mme" / "eval_tool.zip", tmp_path)
    status, out, err = run("fetch", "mme", "--to", tmp_path)
    assert status == 0, err
    unpacked = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert unpacked == {"eval_tool.zip", *(f"eval_tool/Your_Results/{task}.txt" for task in ALL)}
    assert "for academic research only" in out
    assert "pictures, to download yourself" in out


@pytest.fixture
def files(tmp_path):
    """Questions of three tasks, and answers that are all yes."""
    data = write_questions(tmp_path / "data", HALLUCINATION[:3])
    answers = [
        {"task": task, "image": image, "question": question, "text": "Yes"}
        for task in HALLUCINATION[:3]
        for image, question, _ in (line.split("\t") for line in (data / f"{task}.txt").read_text().splitlines())
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return data, path


def test_a_table_for_reading_names_the_sums_that_are_not_complete(run, files):
    data, answers = files
    status, out, err = run("score", "mme", "--answers", answers, "--data", data)
    assert (status, err) == (0, "")
    assert out.startswith("18 questions about 9 pictures, read by mme; 0 answers say neither yes nor no\n")
    assert "existence                 50.00      0.00    50.00" in out
    assert "object level" in out
    assert "no hallucination: without color\n" in out
    assert "no attribute level: without color\n" in out
    assert out.rstrip().endswith("5 points between two methods can be a single answer.")


def test_missing_answers(run, files):
    data, answers = files
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[:-1]))
    words = ["score", "mme", "--answers", answers, "--data", data]
    status, out, err = run(*words)
    assert (status, out, "1 of 18 questions have no answer, first 'position/0002.jpg/2'" in err) == (2, "", True)
    status, out, err = run(*words, "--missing", "skip", "--json")
    assert (status, json.loads(out)["questions"], "left out, with their 1 pictures" in err) == (0, 16, True)
    status, out, err = run(*words, "--missing", "wrong", "--json")
    found = json.loads(out)
    assert (status, found["unparsed"], found["tasks"]["position"]["accuracy"], "counted as wrong" in err) == (0, 1, 0.5, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--parser", "vcd"], "unknown parser 'vcd': choose from first-sentence, mme, lmms_eval, vlmevalkit"),
        (["--missing", "ignore"], "choose from refuse, wrong, skip"),
        (["--answers", "none.jsonl"], "none.jsonl: no such file"),
        (["--data", "nowhere"], "nowhere: no such folder of mme's files"),
    ],
)
def test_mistakes_are_one_sentence(run, files, more, message):
    status, out, err = run("score", "mme", "--answers", files[1], "--data", files[0], *more)
    assert (status, out) == (2, "")
    assert err.startswith("mgap: ")
    assert message in err
