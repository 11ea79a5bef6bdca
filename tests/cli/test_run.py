"""`mgap run` as a user calls it: on drawn pictures, on own ones, and with mistakes, told before a model is loaded."""

import json
import os
import shlex
import signal
import sys
from subprocess import DEVNULL, PIPE

import pytest
import yaml

from mgap.backbones.prepared_pictures import picture_digest
from mgap.pocket.difficulty import Difficulty
from mgap.pocket.samples import SceneRenderer
from mgap.pocket.tiny import build_tiny
from tests import processes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-qwen")
    build_tiny("qwen3-vl", folder, words=("Yes", "No", "yes", "no"))
    return str(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two pictures and a file of questions about them."""
    folder = tmp_path_factory.mktemp("photos")
    rows = []
    for seed in (200_000, 200_001):
        SceneRenderer()(f"pocket_{seed}.png").save(folder / f"{seed}.png")
        rows += [{"image": f"{seed}.png", "question": f"Is there a {thing} here?", "label": "Yes"} for thing in ("cat", "cup")]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_run_ends_with_scores_and_a_report_and_can_be_scored_again_without_a_model(run, tiny, tmp_path):
    out = tmp_path / "run"
    status, _, error = run(
        "run", "pope", "--model", tiny, "--dataset", "pocket", "--scenes", 2, "--method", "vanilla", "--method", "mgap",
        "--set", "mgap.alpha=2", "--decoding", "max_new_tokens=2", "--batch-size", 8, "--out", out,
    )  # fmt: skip
    assert status == 0, error
    assert {"run.json", "samples.jsonl", "answers", "scores.json", "report.html", "report.md", "report.tex"} <= set(
        os.listdir(out)
    )
    plan = json.loads((out / "run.json").read_text())
    assert plan["arms"][1]["settings"] == {"alpha": 2}
    first = json.loads((out / "scores.json").read_text())
    (out / "scores.json").unlink()
    assert run("score", out)[0] == 0
    assert json.loads((out / "scores.json").read_text()) == first
    assert run("score", out, "--parser", "lmms_eval")[0] == 0
    assert "lmms_eval" in (out / "scores.json").read_text()


def test_the_difficulty_of_a_file_and_of_the_command_line_reaches_the_pictures_and_the_report(run, tiny, tmp_path):
    keys = {
        "benchmark": "pope", "model": tiny, "dataset": "pocket", "scenes": 1, "splits": ["random"], "methods": ["vanilla"],
        "decoding": {"max_new_tokens": 2}, "difficulty": {"noise": 0.3, "blur": 1},
    }  # fmt: skip
    (tmp_path / "hard.yaml").write_text(yaml.safe_dump(keys))
    out = tmp_path / "run"
    status, _, error = run(
        "run", tmp_path / "hard.yaml", "--difficulty", "noise=0.15", "--difficulty", "size=0.8", "--out", out
    )
    assert status == 0, error
    knobs = {"noise": 0.15, "blur": 1, "size": 0.8}
    assert json.loads((out / "run.json").read_text())["difficulty"] == knobs
    (record, *_) = map(json.loads, (out / "answers" / "vanilla" / "0-of-1.jsonl").read_text().splitlines())
    (sample, *_) = map(json.loads, (out / "samples.jsonl").read_text().splitlines())
    assert record["image"] == picture_digest(SceneRenderer(difficulty=Difficulty(**knobs))(sample["image"]))
    assert "noise 0.15" in (out / "report.md").read_text()
    status, _, error = run("run", tmp_path / "hard.yaml", "--out", out)
    assert (status, "difficulty.noise = 0.15, not 0.3" in error) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--difficulty", "fog=1"], "no knob 'fog': choose from noise, blur, light, size, crowding, cut"),
        (["--difficulty", "noise=2"], "noise=2 must be a number from 0 to 1"),
        (["--difficulty", "noise=much"], "noise='much' must be a number"),
        (["--difficulty", "cut=true"], "cut=True must be a number from 0 to 0.5"),
        (["--difficulty", "noise=0.1", "--images", "."], "difficulty is of the pocket world's pictures"),
    ],
)
def test_a_difficulty_that_cannot_act_is_refused_before_the_model_is_loaded(run, tiny, words, told):
    world = [] if "--images" in words else ["--dataset", "pocket"]
    status, _, error = run("run", "pope", "--model", tiny, *world, *words)
    assert status == 2, error
    assert told in error
    assert "loading" not in error


def test_own_questions_from_a_yaml_file(run, tiny, photos, tmp_path):
    keys = {
        "benchmark": "own", "model": tiny, "questions": str(photos / "mine.jsonl"), "images": str(photos),
        "methods": ["vanilla", {"method": "vcd", "label": "noisy"}], "decoding": {"max_new_tokens": 2},
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
    status, _, error = run("run", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert status == 0, error
    assert "label" in error  # written Yes, read as yes: told in a note
    assert len((tmp_path / "run" / "answers" / "noisy" / "0-of-1.jsonl").read_text().splitlines()) == 4


MISTAKES = {
    "a misspelt key": (lambda p: {"metods": []}, "did you mean 'methods'"),
    "a misspelt parser": (lambda p: {"scoring": {"parser": "vcdd"}}, "vcdd"),
    "no folder of pictures": (lambda p: {"images": str(p / "nowhere")}, "no such folder of pictures"),
    "half of the pictures": (lambda p: {"images": str(p / "half")}, "1 of 2 pictures are missing, first 200001.png"),
    "a label that is no label": (lambda p: {"questions": str(p / "labels.jsonl")}, "perhaps"),
    "one id twice": (lambda p: {"questions": str(p / "twice.jsonl")}, "'a'"),
    "a last line cut off": (lambda p: {"questions": str(p / "cut.jsonl")}, "line 4"),
    "a folder that is in use": (lambda p: {}, "holds notes.txt and no run"),
}


@pytest.mark.parametrize("name", list(MISTAKES))
def test_mistakes_are_told_before_the_model_is_loaded(run, tiny, photos, tmp_path, name):
    change, told = MISTAKES[name]
    lines = (photos / "mine.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "200000.png").write_bytes((photos / "200000.png").read_bytes())
    (tmp_path / "labels.jsonl").write_text(lines[0] + lines[1].replace('"Yes"', '"perhaps"'))
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps({**json.loads(line), "id": "a"}) + "\n" for line in lines[:2]))
    (tmp_path / "cut.jsonl").write_text("".join(lines)[:-20])
    out = tmp_path / "run"
    if name == "a folder that is in use":
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    keys = {
        "benchmark": "own",
        "model": tiny,
        "questions": str(photos / "mine.jsonl"),
        "images": str(photos),
        "methods": ["vanilla"],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**keys, **change(tmp_path)}))
    status, _, error = run("run", tmp_path / "mine.yaml", "--out", out)
    assert status == 2, error
    assert told in error
    assert "loading" not in error


def test_pictures_that_are_missing_may_be_left_out(run, tiny, photos, tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "200000.png").write_bytes((photos / "200000.png").read_bytes())
    status, _, error = run(
        "run", "own", "--model", tiny, "--questions", photos / "mine.jsonl", "--images", tmp_path / "half", "--missing", "skip",
        "--method", "vanilla", "--decoding", "max_new_tokens=1", "--out", tmp_path / "run",
    )  # fmt: skip
    assert status == 0, error
    assert "2 of 4 samples are left out" in error


def wait_for_answers(process):
    """Until it tells how far it is, which it does after its first batch; what it has said so far."""
    said = []
    for line in process.stderr:
        said.append(line)
        if " of 240; " in line:
            return said
    raise AssertionError("".join(said))


def pope(tiny, out, *words):
    """The words of a run of 240 questions, in batches of four."""
    return ["run", "pope", "--model", tiny, "--dataset", "pocket", "--scenes", "40", "--method", "vanilla", "--split", "random",
            "--decoding", "max_new_tokens=2", "--batch-size", "4", "--out", str(out), *words]  # fmt: skip


IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@pytest.mark.parametrize(
    ("by", "before", "workers"),
    [
        pytest.param("SIGTERM", IGNORING, 0, id="sigterm"),
        pytest.param("SIGTERM", IGNORING, 1, id="sigterm, with a worker", marks=pytest.mark.long),
        pytest.param("SIGINT", "", 1, id="ctrl-c, with a worker", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_stopped_keeps_its_answers_and_says_how_to_go_on(tiny, tmp_path, by, before, workers):
    out, number = tmp_path / "a run", signal.Signals[by]
    code = f"{before}\nfrom mgap.cli.main import main\nif __name__ == '__main__': main()"
    (tmp_path / "mgap").write_text(code)
    words = pope(tiny, out, "--workers", str(workers))
    with processes.started([sys.executable, str(tmp_path / "mgap"), *words], stdout=DEVNULL, stderr=PIPE, text=True) as process:
        said = wait_for_answers(process)
        process.send_signal(number)
        last = process.stderr.read()  # to the end: those that prepare pictures have it too, and have ended
        process.wait()
    assert process.returncode == 128 + number, last
    kept = len((out / "answers" / "vanilla" / "0-of-1.jsonl").read_text().splitlines())
    assert 4 <= kept < 240
    *_, told = last.splitlines()
    assert told == f"mgap: stopped; {kept} of 240 answers are saved in {out}; resume with: {shlex.join(['mgap', *words])}"
    assert "Traceback" not in last
    ignored = f"mgap: Ctrl-C is ignored here; end this with: kill {process.pid}\n"
    assert (ignored in said) == bool(before)


@pytest.mark.long
def test_two_processes_on_one_folder_do_not_mix(tiny, tmp_path):
    """The second is refused while the first is at work, and goes on after it was killed."""
    command = [sys.executable, "-m", "mgap.cli.main", *pope(tiny, tmp_path / "run")]
    answers = tmp_path / "run" / "answers" / "vanilla" / "0-of-1.jsonl"
    with processes.started(command, stdout=DEVNULL, stderr=PIPE, text=True) as first:
        wait_for_answers(first)
        first.send_signal(signal.SIGSTOP)  # at work, however long the second takes to start
        second = processes.run(command, capture_output=True, text=True)
        assert second.returncode == 2
        assert f"process {first.pid} is answering this share already" in second.stderr
    third = processes.run(command, capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    ids = [json.loads(line)["id"] for line in answers.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 240
