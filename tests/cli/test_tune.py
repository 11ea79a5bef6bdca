"""`mgap tune` as a user types it, and runs that use what it chose."""

import json

import pytest
import torch

import mgap
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.cli.options import load_model
from mgap.pocket.benchmark import DEVELOPMENT
from mgap.pocket.samples import pope_samples
from mgap.tuning.development import own_questions

FEW = ["--grid", "alpha=0:6:3", "--grid", "lam=0.5,1", "--grid", "rank=1,3"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Some development questions of the pocket world as a user's own file."""
    folder = tmp_path_factory.mktemp("own")
    found = pope_samples(["adversarial"], 10, first=DEVELOPMENT)
    for name in {sample.image for sample in found.samples}:
        found.picture(name).save(folder / name)
    lines = [{"image": s.image, "question": s.prompt, "label": s.truth, "id": s.id} for s in found.samples]
    (folder / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.long
def test_what_is_tuned_with_labels_is_what_a_run_of_the_same_questions_scores(run, files, tmp_path):
    own = ["--questions", files / "mine.jsonl", "--model", "pocket/llava", "--dtype", "float32"]
    status, said, err = run("tune", *own, *FEW, "--rule", "labels", "--out", tmp_path / "prior", "--k", 5)
    assert status == 0, err
    assert "labels are used" in err
    assert "30 questions about 5 pictures to judge, 30 about 5 others" in err
    assert "Rule labels, with labels" in said
    assert "Pick: alpha" in said
    tuning = mgap.Subspace.load(tmp_path / "prior").tuning
    assert tuning["settings"]["alpha"] > 0  # plain decoding of these falls short
    judged = {sample.id for sample in own_questions(str(files / "mine.jsonl")).judged}
    lines = [line for line in (files / "mine.jsonl").read_text().splitlines() if json.loads(line)["id"] in judged]
    (files / "judged.jsonl").write_text("\n".join(lines))
    status, said, err = run(
        "run", "own", "--questions", files / "judged.jsonl", "--images", files, "--model", "pocket/llava", "--dtype", "float32",
        "--prior", tmp_path / "prior", "--method", "vanilla", "--method", "mgap", "--set", "mgap.preset=tuned",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert status == 0, err
    methods = json.loads((tmp_path / "run" / "scores.json").read_text())["methods"]
    for label, name in (("mgap", "chosen"), ("vanilla", "plain")):
        for figure in ("f1", "accuracy", "precision", "recall", "yes_ratio"):
            value = methods[label]["groups"]["all"]["rates"][figure]["value"]
            assert tuning["figures"][name][figure][0] == pytest.approx(value), (label, figure)


def test_without_labels_it_says_that_none_were_read(run, files, tmp_path):
    status, said, err = run("tune", "--model", "pocket/llava", "--scenes", 4, *FEW, "--k", 3, "--out", tmp_path)
    assert status == 0, err
    assert "labels are not read" in err
    assert "pocket-pope, development scenes" in err
    assert "Rule departure, without labels" in said
    assert "F1" not in said
    assert "states outside" in said
    picture = next(files.glob("*.png"))
    words = ["ask", picture, "Is there a dog in the image?", "--model", "pocket/llava", "--prior", tmp_path]
    status, said, err = run(*words, "--set", "preset=tuned")
    assert status == 0, err
    assert yes_or_no(said) is not None


MISTAKES = {
    "an unknown rule": (["--rule", "best"], "departure, labels"),
    "an objective without labels": (["--objective", "f1"], "leave it out"),
    "an unknown objective": (["--rule", "labels", "--objective", "recall"], "f1, accuracy"),
    "a grid of nothing": (["--grid", "alpha"], "NAME=VALUES"),
    "a grid of words": (["--grid", "alpha=much"], "FIRST:LAST:STEP"),
    "a grid backwards": (["--grid", "alpha=8:0:1"], "not above the last"),
    "a grid of another setting": (["--grid", "beta=1"], "alpha, lam, rank, gate, protect"),
    "half a direction": (["--grid", "rank=1.5"], "rank=1.5"),
    "a gate of another kind": (["--grid", "gate=1"], "neither true nor false"),
    "pictures without questions": (["--images", "photos"], "--questions"),
    "scenes with questions": (["--questions", "mine.jsonl", "--scenes", "3"], "--scenes"),
    "one scene": (["--scenes", "1"], "at least 2"),
    "an unknown null image": (["--null-image", "white"], "black336"),
    "a prior that is fitted and given": (["--prior", "p", "--null-image", "black336"], "--prior"),
    "no file": (["--questions", "nowhere.jsonl"], "nowhere.jsonl"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence_before_the_model_is_loaded(run, tmp_path, mistake):
    words, named = MISTAKES[mistake]
    status, said, err = run("tune", "--model", "pocket/llava", "--out", tmp_path / "out", *words)
    assert (status, said) == (2, "")
    assert named in err
    assert "loading" not in err
    assert err.count("\n") == 1


def test_another_model_needs_questions(run, checkpoints, tmp_path):
    status, _, err = run("tune", "--model", checkpoints["llava"], "--out", tmp_path / "out")
    assert status == 2
    assert "--questions" in err


def test_a_prior_of_a_smaller_rank_than_the_grid_is_refused(run, tmp_path):
    import torch

    mgap.Subspace.from_states(torch.randn(20, 8), 2).save(tmp_path / "small")
    status, _, err = run("tune", "--model", "pocket/llava", "--prior", tmp_path / "small", "--out", tmp_path / "out")
    assert status == 2
    assert "rank=10" in err


def test_a_run_with_the_preset_and_a_prior_without_a_tuning_names_the_command(run, tmp_path):
    status, _, err = run(
        "run", "pope", "--model", "pocket/llava", "--scenes", 1, "--method", "mgap", "--set", "mgap.preset=tuned",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert status == 2
    assert "`mgap tune`" in err


def test_the_preset_is_listed(run):
    assert "mgap tuned            what `mgap tune` chose for the prior" in run("ls", "presets")[1]


def test_an_embedded_model_has_one_thread_unless_the_user_says_how_many(checkpoints, monkeypatch):
    before, found = torch.get_num_threads(), []
    try:
        for name, told in (("pocket/llava", None), ("pocket/llava", "2"), (str(checkpoints["llava"]), None)):
            torch.set_num_threads(2)
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if told:
                monkeypatch.setenv("OMP_NUM_THREADS", told)
            load_model(name, "cpu", "auto", None, False)
            found.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert found == [1, 2, 2]
