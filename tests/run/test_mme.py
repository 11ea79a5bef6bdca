"""MME on drawn pictures: run, stopped, resumed, scored, reported and measured as any benchmark is."""

import json
import multiprocessing
import signal
from pathlib import Path

import pytest

from mgap.errors import SettingError
from mgap.reports.score_tables import paired_tables, score_tables
from mgap.reports.scores import score
from mgap.run.config import Config
from mgap.run.records import Run
from mgap.types import Sample
from tests.benchmarks.mme.made import draw_mme
from tests.reports.runs import answers, questions, write_run
from tests.run.test_kill import answered, start

TABLE = "| Method | Existence | Count | Position | Color | Object level | Attribute level | Total | Samples |"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_mme(tmp_path_factory.mktemp("mme"))


@pytest.fixture
def words(tiny, drawn, tmp_path):
    """The words of a run with a plain model and one that says yes more often."""
    return [
        "run", "mme", "--model", tiny, "--images", drawn, "--data", drawn, "--method", "vanilla", "--method", "bias",
        "--set", "bias.shift=9", "--decoding", "max_new_tokens=2", "--batch-size", 3, "--out", tmp_path / "run",
    ]  # fmt: skip


def test_a_run_is_resumed_scored_and_reported_with_one_row_a_method(run, words, drawn, tmp_path):
    out = tmp_path / "run"
    status, printed, told = run(*words, "--wide")
    assert status == 0, told
    for text in (printed, (out / "report.md").read_text()):
        assert TABLE in text
        assert "Accuracy+" in text
        assert "5 points between two methods can be a single answer." in text
    assert "Percent, but for the score in points and the mean length; with each figure" in printed
    assert "Points; with each figure" in printed
    scores = json.loads((out / "scores.json").read_text())
    groups = scores["methods"]["bias"]["groups"]
    assert list(groups) == ["existence", "count", "position", "color", "hallucination"]
    assert groups["count"]["counts"].keys() == {"TP", "FP", "TN", "FN"}
    assert {"accuracy_plus", "score"} <= groups["count"]["against"]["differences"].keys()
    assert scores["samples"] == {"asked": 16, "scored": 16}

    file = out / "answers" / "vanilla" / "0-of-1.jsonl"
    whole = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:6]) + '{"id": "col')
    assert run(*words)[0] == 0
    assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == whole
    assert json.loads((out / "scores.json").read_text())["methods"]["bias"]["groups"] == groups

    status, printed, told = run(
        "score", "mme", "--answers", out / "answers" / "bias", "--data", drawn, "--parser", "first-sentence", "--json"
    )
    assert status == 0, told
    found = json.loads(printed)
    assert found["totals"]["hallucination"] == groups["hallucination"]["rates"]["total"]["value"]
    assert found["tasks"]["color"]["yes_ratio"] == groups["color"]["rates"]["yes_ratio"]["value"]
    status, _, told = run("score", out, "--parser", "mme")
    assert status == 0, told
    assert json.loads((out / "scores.json").read_text())["scorer"] == {"task": "mme", "parser": "mme"}


def test_a_failed_question_leaves_its_picture_out_and_that_is_told(run, words, tmp_path):
    assert run(*words)[0] == 0
    file = tmp_path / "run" / "answers" / "bias" / "0-of-1.jsonl"
    first, *rest = file.read_text().splitlines(keepends=True)
    record = {"id": json.loads(first)["id"], "text": "", "failed": "no memory"}
    file.write_text(json.dumps(record) + "\n" + "".join(rest))
    status, _, told = run("score", tmp_path / "run")
    assert status == 0, told
    assert "14 of 16 samples are scored" in told
    task = record["id"].split("/")[0]
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    for method in scores["methods"].values():
        assert (method["groups"][task]["samples"], method["groups"]["hallucination"]["samples"]) == (2, 14)


def test_beside_another_benchmark_the_remark_stands_below_its_own_tables(tmp_path):
    asked = [Sample(f"color/0.png/{n}", "color/0.png", "Is it?", "color", ("yes", "no")[n - 1]) for n in (1, 2)]
    pope = questions()
    plan = {"benchmark": {"name": "mme color", "task": "mme", "lexicon": {}, "sources": {}, "notes": []}}
    runs = [
        Run.load(write_run(tmp_path / "mme", asked, {"Vanilla": answers(asked), "Ours": answers(asked)}, **plan)),
        Run.load(write_run(tmp_path / "pope", pope, {"Vanilla": answers(pope), "Ours": answers(pope)})),
    ]
    scored = [score(each) for each in runs]
    for tables in (score_tables(scored), paired_tables(scored)):
        assert ["MME's tasks are small" in table.caption for table in tables] == [True, False]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tasks", "colour"], "unknown task 'colour' of MME: choose from hallucination, perception, cognition, all"),
        (["--tasks", "OCR"], "no OCR.txt in it"),
        (["--prompt", "vcd-qwen"], "unknown prompt 'vcd-qwen' of MME"),
        (["--scoring", "parser=opera"], "unknown parser 'opera': choose from first-sentence, mme, lmms_eval, vlmevalkit"),
        (["--split", "random"], "splits is a key of pope and repope and departure, not of mme"),
        (["--images", "nowhere"], "nowhere: no such folder of pictures"),
    ],
)
def test_mistakes_are_told_before_the_model_is_loaded(run, words, more, message):
    status, _, told = run(*words, *more)
    assert status == 2, told
    assert message in told
    assert "loading" not in told


def test_what_mme_alone_reads_is_refused_elsewhere_and_drawn_pictures_have_no_mme():
    keys = {"model": "pocket/llava", "methods": ["vanilla"]}
    with pytest.raises(SettingError, match="tasks is a key of mme and departure, not of pope"):
        Config.of({**keys, "benchmark": "pope", "tasks": "all"})


def test_the_pocket_world_does_not_ask_mme(run):
    status, _, told = run("run", "mme", "--model", "pocket/llava", "--method", "vanilla")
    assert (status, "benchmark mme: it is not part of the pocket world; give images" in told) == (2, True)


def test_departures_are_measured_on_the_questions_of_the_data_set(answer, drawn, tmp_path):
    given = {"benchmark": "departure", "dataset": "mme", "images": str(drawn), "data": str(drawn), "scenes": 500}
    run, summary = answer(
        tmp_path / "run", **given, tasks="existence,color", methods=["vanilla", "blind"], decoding={}, departure={"k": 1}
    )
    assert {sample.group for sample in run.samples} <= {"existence", "color"}
    assert len(run.samples) == 4  # the other two pictures are the bank
    assert summary.answered == {"vanilla": 4, "blind": 4}
    assert Run.load(tmp_path / "run").plan["benchmark"]["name"] == "mme existence,color"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dataset": "mme", "splits": ["random"]}, "of MME's questions, which have no splits"),
        ({"dataset": "coco", "tasks": "all"}, "of POPE's questions, which have no tasks"),
        ({"departure": {"along": "answers"}, "tasks": "all"}, "of descriptions, which have no tasks"),
        ({"questions": "mine.jsonl", "tasks": "all"}, "of your own questions, which have no tasks"),
    ],
)
def test_departures_refuse_the_keys_of_questions_that_they_do_not_ask(more, message):
    keys = {"benchmark": "departure", "model": "pocket/llava", "methods": ["vanilla"], "images": "photos"}
    with pytest.raises(SettingError, match=message):
        Config.of({**keys, **more})


@pytest.mark.long
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(drawn, tmp_path):
    keys = {
        "benchmark": "mme", "model": "pocket/llava", "images": str(drawn), "data": str(drawn), "dtype": "float32",
        "methods": ["vanilla"], "decoding": {"max_new_tokens": 2}, "batch_size": 3,
    }  # fmt: skip
    context = multiprocessing.get_context("forkserver")
    whole = start(context, keys, tmp_path / "whole")
    whole.join()
    assert whole.exitcode == 0
    for goal in (0, 4, 9):
        process = start(context, keys, tmp_path / "killed", goal)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert goal <= len(answered(tmp_path / "killed")) < 16
    last = start(context, keys, tmp_path / "killed")
    last.join()
    assert last.exitcode == 0
    runs = [Run.load(Path(tmp_path, name)) for name in ("whole", "killed")]
    texts = [{name: record.text for name, record in run.records(run.methods[0]).items()} for run in runs]
    assert len(texts[0]) == 16
    assert texts[0] == texts[1]
