"""A run that is killed again and again, at any moment, ends as one that was not."""

import multiprocessing
import os
import random
import signal

import pytest

from mgap.benchmarks.pope.questions import read_questions
from mgap.pocket.scenes import make_scene, render
from mgap.run.config import Config
from mgap.run.records import Run, read_lines

pytestmark = pytest.mark.long

KILLS = 10
PICTURES = 50
KEYS = {
    "model": "pocket/llava", "splits": ["adversarial"], "dtype": "float32", "methods": [{"method": "bias", "shift": -1.5}],
    "decoding": {"max_new_tokens": 2}, "batch_size": 4,
}  # fmt: skip


@pytest.fixture(params=["pope", "repope"])
def asked(request, tmp_path):
    """The keys of a run, and how many questions it has."""
    if request.param == "pope":
        return {**KEYS, "benchmark": "pope", "scenes": PICTURES}, 6 * PICTURES
    data = request.getfixturevalue("shared") / "data" / "repope"
    kept, _ = read_questions(data / "coco_repope_adversarial.json")
    names = list(dict.fromkeys(question.image for question in kept))[:PICTURES]
    (tmp_path / "coco").mkdir()
    for seed, name in enumerate(names, start=300_000):
        render(make_scene(seed)).save(tmp_path / "coco" / name)
    keys = {**KEYS, "benchmark": "repope", "images": str(tmp_path / "coco"), "data": str(data), "missing": "skip"}
    return keys, sum(question.image in names for question in kept)


def answer(keys: dict, folder: str, goal: int | None = None, forwards: int = 0) -> None:
    """In a process of its own, which kills itself so many forward passes after so many answers."""
    from mgap.decoding.model import load
    from mgap.run.engine import execute
    from mgap.run.job import Job

    job = Job.prepare(Config.of(keys), folder)
    model = load(keys["model"], device="cpu", dtype=keys["dtype"])
    written, passed = 0, 0

    def write(state) -> None:
        nonlocal written
        written = state.done

    def forward(*_) -> None:
        nonlocal passed
        if goal is not None and written >= goal:
            passed += 1
            if passed > forwards:
                os.kill(os.getpid(), signal.SIGKILL)

    run, worker = job.begin(model)
    written = sum(len(run.records(method)) for method in run.methods)
    model.backbone.model.register_forward_pre_hook(forward)
    execute(run, worker, shard=job.shard, labels=job.labels, listener=write)


def answered(folder) -> list[dict]:
    return [line for path in sorted((folder / "answers").rglob("*.jsonl")) for line in read_lines(path)]


def start(context, keys, folder, *when):
    process = context.Process(target=answer, args=(keys, str(folder), *when), daemon=True)  # so it does not outlive the tests
    process.start()
    return process


def test_hundreds_of_questions_killed_ten_times_end_with_the_same_scores(asked, tmp_path):
    keys, total = asked
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mgap.run.job", "mgap.run.engine", "mgap.pocket.samples"])
    whole = start(context, keys, tmp_path / "whole")
    whole.join()
    assert whole.exitcode == 0
    moments, killed_at = random.Random(0), []
    for kill in range(KILLS):
        goal = moments.randrange(total * kill // (KILLS + 1), total * (kill + 1) // (KILLS + 1))
        process = start(context, keys, tmp_path / "killed", goal, moments.randrange(5))
        process.join()
        assert process.exitcode == -signal.SIGKILL
        killed_at.append(len(answered(tmp_path / "killed")))
    assert 0 < killed_at[-1] < total
    assert len(set(killed_at)) > 5  # they fell on different moments of the work
    last = start(context, keys, tmp_path / "killed")
    last.join()
    assert last.exitcode == 0
    ids = [line["id"] for line in answered(tmp_path / "killed")]
    assert len(ids) == len(set(ids)) == total
    runs = [Run.load(tmp_path / name) for name in ("whole", "killed")]
    texts = [{id_: record.text for id_, record in run.records(run.methods[0]).items()} for run in runs]
    assert texts[0] == texts[1]
