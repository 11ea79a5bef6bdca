"""The standalone scripts as a user starts them, and what they say when something is wrong."""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from mgap.run.records import Run
from tests import processes

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCES = str(EXAMPLES.parent / "src")


def start(script, folder, *words):
    """In a process of its own, in a folder of its own; gives what it printed."""
    paths = os.pathsep.join([SOURCES, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ran = processes.run(
        [sys.executable, str(EXAMPLES / script), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The same in this process, where torch is imported already."""
    monkeypatch.chdir(tmp_path)

    def run(script, *words):
        monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")

    return run


@pytest.fixture
def refusal(here):
    """What a script ends with."""

    def run(script, *words):
        with pytest.raises(SystemExit) as ended:
            here(script, *words)
        return str(ended.value)

    return run


def test_a_prior_of_ones_own_is_fitted_compared_saved_and_used(tmp_path):
    told = start("fit_prior.py", tmp_path, "--model", "pocket/qwen3-vl", "--out", "mine")
    shares = [float(share) for share in re.findall(r"^ +\d +(\d+\.\d)%", told, re.MULTILINE)]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    angles = [int(angle) for angle in re.search(r"default prompts: (.*) degrees", told)[1].split(", ")]
    assert len(angles) == 5
    assert angles == sorted(angles)
    assert (tmp_path / "mine" / "subspace.json").is_file()
    assert "plain       Yes, there is a cup in the image." in told
    assert "alpha 4     No, there is no cup in the image." in told


def test_captions_side_by_side_are_counted_and_a_second_start_asks_nothing_again(tmp_path, here, capsys):
    words = ("--pictures", "5", "--alpha", "1", "--max-new-tokens", "40", "--out", "runs/c")
    told = start("guard_captions.py", tmp_path, *words)
    rows = [json.loads(line) for line in (tmp_path / "runs/c/captions.jsonl").read_text().splitlines()]
    changed = [row for row in rows if row["plain"] != row["MGAP"]]
    assert len(rows) == 5
    assert 0 < len(changed) < 5
    assert f"5 pictures, MGAP at alpha 1 changed {len(changed)} captions" in told
    assert len(re.findall(r"^(?:CHAIRs|CHAIRi|recall) .*\]$", told, re.MULTILINE)) == 3
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs/c/answers").rglob("*.jsonl")}
    assert len(files) == 2
    here("guard_captions.py", *words)
    assert capsys.readouterr().out == told
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs/c/answers").rglob("*.jsonl")} == files


def test_methods_are_compared_on_own_questions_and_a_report_is_written(tmp_path):
    told = start("compare_methods.py", tmp_path, "--pictures", "3", "--out", "runs/q")
    lines = [json.loads(line) for line in (tmp_path / "runs/q-questions/questions.jsonl").read_text().splitlines()]
    assert len(lines) == 18
    assert set(lines[0]) == {"image", "question", "label"}
    run = Run.load(tmp_path / "runs/q")
    assert [len(run.records(method)) for method in run.methods] == [18] * 5
    assert re.search(r"^vcd .*[+-]\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\]  \d+, \d+$", told, re.MULTILINE)
    assert {"scores.json", "report.md", "report.html"} <= {path.name for path in (tmp_path / "runs/q").iterdir()}


def test_evidence_is_brought_for_five_methods(here, capsys):
    here("bring_evidence.py", "--pictures", 2)
    told = capsys.readouterr().out.splitlines()
    assert told[0].split() == ["accuracy", "yes", "CHAIRi", "recall"]
    rows = {line[:20].strip(): re.findall(r"(\S+) \[", line) for line in told[1:]}
    assert list(rows) == ["plain", "convis", "convis, alpha 0.1", "agla", "halc", "marine", "cicd"]
    assert all(len(numbers) == 4 for numbers in rows.values())
    assert len({tuple(numbers) for numbers in rows.values()}) > 3


def test_what_is_wrong_is_said_in_a_sentence(refusal, tmp_path):
    assert "nowhere.txt: no such file of prompts" in refusal("fit_prior.py", "--prompts", "nowhere.txt")
    assert "nowhere: no such folder" in refusal("guard_captions.py", "--images", "nowhere")
    (tmp_path / "mine.jsonl").write_text('{"image": "a.png", "question": "Is it?"}\n')
    assert "no 'label'" in refusal("compare_methods.py", "--questions", "mine.jsonl")
    assert "error=2.0 must be" in refusal("bring_evidence.py", "--error", 2)
    assert "does not answer" in refusal("serve_vllm.py", "--url", "http://127.0.0.1:9")


def test_annotations_must_be_of_every_picture_and_in_known_names(refusal, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.PNG"):
        (photos / name).write_bytes(b"never opened")
    given = ("--images", photos, "--annotations", tmp_path / "objects.json")
    (tmp_path / "objects.json").write_text('{"a.png": ["dog"]}')
    assert "nothing about 1 of 2 pictures, first b.PNG" in refusal("guard_captions.py", *given)
    (tmp_path / "objects.json").write_text('{"a.png": ["dog"], "b.PNG": ["unicorn"]}')
    assert "'unicorn' is none of COCO's 80 classes" in refusal("guard_captions.py", *given)
