"""`mgap run repope`, and `mgap run pope` where RePOPE's labels are at hand: the same figures of the same model."""

import json

import pytest

from mgap.pocket.scenes import make_scene, render


@pytest.fixture
def words(shared, tiny, tmp_path):
    """The words of a run of COCO's POPE on two drawn pictures under COCO's names, whose questions RePOPE changed."""
    (tmp_path / "coco").mkdir()
    for number in (190185, 310196):
        render(make_scene(300_000 + number)).save(tmp_path / "coco" / f"COCO_val2014_{number:012}.jpg")
    return [
        "--model", tiny, "--images", tmp_path / "coco", "--data", shared / "data", "--missing", "skip", "--split", "popular",
        "--split", "random", "--method", "vanilla", "--method", "blind", "--decoding", "max_new_tokens=2", "--batch-size", "4",
    ]  # fmt: skip


def scores_of(folder):
    return json.loads((folder / "scores.json").read_text())


def figures(scores):
    return {
        (label, split): (part["samples"], part["counts"], part["rates"]["f1"])
        for label, method in scores["methods"].items()
        for split, part in method["groups"].items()
    }


def test_it_is_run_resumed_and_reported_and_pope_has_its_figures_beside(run, words, tmp_path):
    status, out, told = run("run", "repope", *words, "--out", tmp_path / "repope")
    assert status == 0, told
    assert "questions, labelled by RePOPE" in told
    answers = tmp_path / "repope" / "answers" / "vanilla" / "0-of-1.jsonl"
    whole = answers.read_text()
    answers.write_text("".join(whole.splitlines(keepends=True)[:5]) + '{"id": "popular/')
    assert run("run", "repope", *words, "--out", tmp_path / "repope")[0] == 0
    said = [
        {json.loads(line)["id"]: json.loads(line)["text"] for line in text.splitlines()}
        for text in (whole, answers.read_text())
    ]
    assert said[0] == said[1]
    assert "repope coco" in (tmp_path / "repope" / "report.md").read_text()

    status, out, told = run("run", "pope", *words, "--out", tmp_path / "pope")
    assert status == 0, told
    assert "F1 (RePOPE)" in out
    scores = scores_of(tmp_path / "pope")
    assert figures(scores["relabelled"]) == figures(scores_of(tmp_path / "repope"))
    changes = scores["relabelled"]["splits"]
    assert {split: change["kept"] + change["dropped"] for split, change in changes.items()} == {"popular": 12, "random": 12}
    assert any(change["dropped"] for change in changes.values())
    assert any(change["flipped_to_no"] for change in changes.values())
    assert "F1 (RePOPE)" in (tmp_path / "pope" / "report.html").read_text()


def test_a_run_of_repope_is_not_labelled_again(run, words, tmp_path, shared):
    assert run("run", "repope", *words, "--limit", "1", "--out", tmp_path / "run")[0] == 0
    status, _, told = run("score", tmp_path / "run", "--relabel", "repope", "--data", shared / "data")
    assert status == 2
    assert "its answers are to repope coco, and RePOPE labelled POPE on COCO only" in told
    assert "relabelled" not in scores_of(tmp_path / "run")
