"""The order of asking: pictures of one size together, fewer padded positions, and nothing else that changes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mgap
from mgap.errors import CorruptFile
from mgap.io.images import picture_size
from mgap.reports.scores import score
from mgap.run import job as jobs
from mgap.run import sample_order
from mgap.run.config import Config
from mgap.run.engine import batches, execute
from mgap.run.folder import Shard
from mgap.run.job import Job
from mgap.run.records import ORDER, Run
from mgap.run.sample_order import by_size
from mgap.types import Sample

SIZES = ((64, 64), (160, 128), (96, 80))  # width, height; in turn, so that every batch has all of them
QUESTIONS = ("Is there a dog?", "Is there a cat in this long and winding picture?", "Is there a dog?")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Nine pictures of three sizes and one that is none, with three questions each, of which two are the same."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(9):
        width, height = SIZES[number % 3]
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (folder / "none.png").write_bytes(b"no picture")
    rows = [f"{name}.png,{question},yes" for name in ("none", *range(9)) for question in QUESTIONS]
    (folder / "asked.csv").write_text("\n".join(["image,question,label", *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def model(family, checkpoints):
    """As real ones of its family are: where pictures may have as many tokens as their size gives, they have."""
    model = mgap.load(str(checkpoints[family]))
    if family == "qwen3-vl":
        images = model.backbone.processor.image_processor
        images.size = type(images.size)(shortest_edge=32 * 32, longest_edge=256 * 256)
    return model


@pytest.fixture
def answer(model, family, checkpoints, photos):
    def do(out, shard=None, listener=None, **keys):
        config = {
            "benchmark": "own", "model": str(checkpoints[family]), "images": str(photos), "batch_size": 6,
            "questions": str(photos / "asked.csv"), "methods": ["vanilla"], "decoding": {"max_new_tokens": 4},
        }  # fmt: skip
        job = Job.prepare(Config.of({**config, **keys}), out, shard or Shard())
        run, worker = job.begin(model)
        return run, execute(run, worker, shard=job.shard, labels=job.labels, listener=listener)

    return do


@pytest.fixture
def as_before(monkeypatch):
    """Folders that are made inside have no order of their own, as those of earlier versions."""
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "plan_order", lambda *_: ())
        yield patched


@pytest.fixture
def padded(model):
    """Counts positions of prompts that are read, and those of them that are padding."""
    counts = {"read": 0, "padding": 0}

    def count(_, __, inputs):
        if inputs["input_ids"].shape[1] > 1:
            counts["read"] += inputs["attention_mask"].numel()
            counts["padding"] += int((inputs["attention_mask"] == 0).sum())

    handle = model.backbone.model.register_forward_pre_hook(count, with_kwargs=True)
    yield counts
    handle.remove()


def records(run):
    """What records say, but for the clock and for the batch that a sample was in."""
    kept = ("id", "text", "prompt", "image", "tokens", "stop", "failed")
    found = run.records(run.methods[0])
    return [[getattr(found[sample.id], name) for name in kept] for sample in run.samples]


def asked(folder):
    """Ids in the order in which they were answered, with the rows of their batch."""
    path = folder / "answers" / "vanilla" / "0-of-1.jsonl"
    return [(data["id"], data.get("rows")) for data in map(json.loads, path.read_text().splitlines())]


def test_less_is_padded_and_records_are_the_same(answer, as_before, padded, family, tmp_path):
    before, _ = answer(tmp_path / "before", prefill="own")
    unsorted = dict(padded)
    as_before.undo()
    padded.update(read=0, padding=0)
    after, summary = answer(tmp_path / "after", prefill="own")
    assert not before.order
    assert after.samples == before.samples
    assert summary.answered == {"vanilla": 27}
    assert len(summary.failed["vanilla"]) == 3
    assert records(after) == records(before)
    if family == "qwen3-vl":
        assert padded["padding"] < unsorted["padding"] / 2
        assert padded["read"] < unsorted["read"]
    else:  # every picture is as many tokens
        assert padded["padding"] <= unsorted["padding"]


def test_scores_and_their_intervals_do_not_depend_on_the_order(answer, as_before, tmp_path):
    found = []
    for name in ("before", "after"):
        run, _ = answer(tmp_path / name)
        path = run.folder / "answers" / "vanilla" / "0-of-1.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        told = [
            {**line, "text": "Yes" if int(line["id"]) ** 2 % 7 < 3 else "No"} for line in lines
        ]  # as pictures would have it
        path.write_text("".join(json.dumps(line) + "\n" for line in told))
        found.append(score(run).results["vanilla"].groups)
        as_before.undo()
    assert found[0] == found[1]
    (rates,) = {group.rates["accuracy"] for group in found[0].values()}
    assert 0 < rates.low < rates.value < rates.high < 1


def test_large_pictures_come_first_and_those_that_cannot_be_read_last(answer, photos, tmp_path):
    run, _ = answer(tmp_path / "run")
    samples = {sample.id: sample for sample in run.samples}
    shown = [samples[name] for name in run.order]
    sizes = [picture_size(photos / s.image) for s in shown[::3]]
    assert sizes == [SIZES[1]] * 3 + [SIZES[2]] * 3 + [SIZES[0]] * 3 + [None]
    assert [s.image for s in shown[:9:3]] == ["1.png", "4.png", "7.png"], "of one size, as they first appear"
    assert [s.prompt for s in shown[:3]] == [QUESTIONS[1], QUESTIONS[0], QUESTIONS[2]], "the same words stand together"
    assert [name for name, _ in asked(tmp_path / "run")] == list(run.order)
    assert json.loads((tmp_path / "run" / ORDER).read_text()) == list(run.order)


def interrupt(answer, folder):
    """A run that is stopped on its way."""

    def stop(state):
        if state.done > 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(folder, listener=stop)


def test_a_run_of_an_earlier_version_goes_on_in_its_own_order(answer, as_before, tmp_path):
    answer(tmp_path / "whole")
    interrupt(answer, tmp_path / "run")
    as_before.undo()
    run, summary = answer(tmp_path / "run")
    assert summary.answered == {"vanilla": 27}
    assert not (tmp_path / "run" / ORDER).exists()
    assert not run.order
    assert asked(tmp_path / "run") == asked(tmp_path / "whole")


def test_a_run_keeps_its_order_and_reads_no_sizes_again(answer, monkeypatch, tmp_path):
    answer(tmp_path / "whole")
    interrupt(answer, tmp_path / "run")
    monkeypatch.setattr(sample_order, "picture_size", None)
    answer(tmp_path / "run")
    assert asked(tmp_path / "run") == asked(tmp_path / "whole")


def test_shares_go_by_the_order_of_the_folder(answer, monkeypatch, tmp_path):
    whole, _ = answer(tmp_path / "whole")
    for number in (1, 0, 2):
        run, _ = answer(tmp_path / "run", shard=Shard(number, 3))
        assert run.order == whole.order
        monkeypatch.setattr(sample_order, "picture_size", lambda _: None)  # another machine, which cannot read them
    assert records(run) == records(whole)
    rows = [{name: record.rows for name, record in each.records(each.methods[0]).items()} for each in (run, whole)]
    assert rows[0] == rows[1]


def test_pictures_of_one_size_stay_in_order(answer, photos, tmp_path):
    rows = [f"{number}.png,{question},yes" for number in (6, 0, 3) for question in QUESTIONS]
    (tmp_path / "asked.csv").write_text("\n".join(["image,question,label", *rows]) + "\n")
    run, _ = answer(tmp_path / "run", questions=str(tmp_path / "asked.csv"))
    assert not (tmp_path / "run" / ORDER).exists()
    assert [name for name, _ in asked(tmp_path / "run")] == [sample.id for sample in run.samples]


def test_an_order_of_other_samples_is_refused(answer, tmp_path):
    run, _ = answer(tmp_path / "run")
    (tmp_path / "run" / ORDER).write_text(json.dumps(run.order[1:]))
    with pytest.raises(CorruptFile, match="its 29 ids are not those of the 30 samples"):
        Run.load(tmp_path / "run")
    (tmp_path / "run" / ORDER).write_text("{")
    with pytest.raises(CorruptFile, match="cannot be read"):
        Run.load(tmp_path / "run")


def test_reading_many_sizes_tells_how_far_it_is(photos, monkeypatch):
    from mgap.benchmarks.picture_folder import PictureFolder

    samples, heard = [Sample(str(n), f"{n}.png", "?", "g", "yes") for n in range(9)], []
    sample_order.plan_order(samples, PictureFolder(photos), lambda *told: heard.append(told))
    assert not heard, "a moment"
    monkeypatch.setattr(sample_order, "EVERY", 4)
    sample_order.plan_order(samples, PictureFolder(photos), lambda *told: heard.append(told))
    assert heard == [("sizes of pictures", done, 9) for done in (4, 8, 9)]


NAMES = st.integers(0, 5).map("{}.png".format)
SOME = st.none() | st.tuples(st.integers(8, 11), st.integers(8, 11))


@given(st.lists(st.tuples(NAMES, st.sampled_from(QUESTIONS)), min_size=1, max_size=20), st.lists(SOME, min_size=6, max_size=6))
def test_any_pictures_are_asked_about_once_together_and_by_size(pairs, found):
    samples = [Sample(str(n), name, prompt, "g", "yes") for n, (name, prompt) in enumerate(pairs)]
    sizes = {name: found[int(name[0])] for name in dict.fromkeys(name for name, _ in pairs)}
    ids = by_size(samples, sizes)
    if len({size for size in sizes.values() if size}) < 2:
        assert ids == ()
        return
    shown = [sample for batch in batches(samples, 3, ids) for sample in batch]
    assert [sample.id for sample in shown] == list(ids)
    assert sorted(ids) == sorted(sample.id for sample in samples)
    pictures = [sample.image for n, sample in enumerate(shown) if n == 0 or shown[n - 1].image != sample.image]
    assert len(pictures) == len(sizes)
    areas = [sizes[name][0] * sizes[name][1] if sizes[name] else 0 for name in pictures]
    assert areas == sorted(areas, reverse=True)
