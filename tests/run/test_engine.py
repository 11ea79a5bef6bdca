import json
import os
import shutil
from contextlib import contextmanager

import pytest
import torch

from mgap.errors import ImageError, RunError, SettingError
from mgap.run.engine import batches
from mgap.run.folder import Shard, claim
from mgap.run.records import Record, Run
from mgap.types import Sample


class Wrapped:
    """A worker whose batches go through `around(work, samples)`."""

    def __init__(self, inner, around):
        self.inner, self.around = inner, around

    @contextmanager
    def using(self, method):
        with self.inner.using(method) as work:
            yield lambda samples: self.around(work, samples)


def lines(folder):
    """All lines of answers, without what depends on the clock."""
    found = []
    for path in sorted((folder / "answers").rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            data = json.loads(line)
            found.append((path.parent.name, data["id"], data["text"], data.get("rows"), data.get("failed")))
    return sorted(found, key=str)


def test_every_sample_is_answered_once_and_a_record_tells_all_that_is_needed_to_trace_it(answer, tmp_path):
    run, summary = answer(tmp_path / "run")
    assert summary.answered == {"vanilla": 54}
    records = run.records(run.methods[0])
    assert list(records)
    assert set(records) == {sample.id for sample in run.samples}
    one = records["random/1"]
    assert one.prompt.count("<image>") == 1
    assert len(one.image) == 64
    assert one.rows
    assert one.tokens
    assert one.stop
    assert one.at
    assert run.plan["model"]["family"] == "llava"
    assert run.plan["versions"]["torch"]
    assert run.plan["decoding"]["max_new_tokens"] == 4


def test_records_of_greedy_answers_say_how_many_tokens_were_tied_and_others_say_nothing(answer, tiny_model, tmp_path):
    methods = [{"method": "vanilla"}, {"method": "opera", "beams": 2, "candidates": 1}]
    greedy, _ = answer(tmp_path / "greedy", methods=methods, scenes=1)
    plain, searched = (greedy.records(method).values() for method in greedy.methods)
    assert {record.ties for record in plain} == {0}
    assert {record.ties for record in searched} == {None}
    for number, decoding in enumerate(({"sample": True}, {"num_beams": 2})):
        run, _ = answer(tmp_path / str(number), decoding={"max_new_tokens": 2, **decoding}, scenes=1)
        assert {record.ties for record in run.records(run.methods[0]).values()} == {None}
    head = tiny_model.backbone.head_module
    handle = head.register_forward_hook(lambda _head, _args, out: out * 0)
    try:
        tied, _ = answer(tmp_path / "tied", scenes=1)
    finally:
        handle.remove()
    assert all(record.ties == record.tokens > 0 for record in tied.records(tied.methods[0]).values())


@pytest.mark.parametrize("ties", [None, 0, 3])
def test_a_record_keeps_no_tie_apart_from_not_counted(ties):
    record = Record("1", "Yes.", tokens=2, ties=ties)
    data = json.loads(record.line())
    assert data == {"id": "1", "text": "Yes.", "tokens": 2, **({} if ties is None else {"ties": ties})}
    assert Record.of(data) == record


@pytest.mark.parametrize("odds", [None, 0.0, -1.25])
def test_a_record_keeps_log_odds_of_zero_apart_from_none(odds):
    record = Record("1", "Yes.", log_odds=odds)
    data = json.loads(record.line())
    assert data == {"id": "1", "text": "Yes.", **({} if odds is None else {"log_odds": odds})}
    assert Record.of(data) == record
    with pytest.raises(TypeError, match="log_odds must be a finite number, not inf"):
        Record.of({**data, "log_odds": float("inf")})


def test_answers_of_a_run_are_those_of_the_model_asked_directly(answer, tiny_model, tmp_path):
    from mgap.pocket.samples import SceneRenderer

    run, _ = answer(tmp_path / "run")
    records = run.records(run.methods[0])
    for sample in run.samples[::9]:
        said = tiny_model.answer(SceneRenderer()(sample.image), sample.prompt, max_new_tokens=4)
        assert records[sample.id].text == said.text


def test_samples_of_one_picture_stand_together_and_no_sample_is_lost():
    samples = [Sample(str(n), f"{n % 3}.png", "?", "g", "yes") for n in range(10)]
    found = batches(samples, 4)
    assert [len(batch) for batch in found] == [4, 4, 2]
    assert [s.image for batch in found for s in batch] == ["0.png"] * 4 + ["1.png"] * 3 + ["2.png"] * 3


def test_a_second_run_on_a_finished_folder_answers_nothing_again(answer, tmp_path):
    answer(tmp_path / "run")
    before = lines(tmp_path / "run")

    def forbid(_work, _samples):
        raise AssertionError("a finished answer was asked for again")

    answer(tmp_path / "run", worker=lambda inner: Wrapped(inner, forbid))
    assert lines(tmp_path / "run") == before


def test_a_run_that_ends_in_an_error_loses_no_finished_batch_and_goes_on_where_it_was(answer, tmp_path):
    whole = answer(tmp_path / "whole") and lines(tmp_path / "whole")
    count = 0

    def stop_at_the_fifth(work, samples):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return work(samples)

    with pytest.raises(KeyboardInterrupt):
        answer(tmp_path / "run", worker=lambda inner: Wrapped(inner, stop_at_the_fifth))
    assert len(lines(tmp_path / "run")) == 16
    answer(tmp_path / "run")
    assert lines(tmp_path / "run") == whole


@pytest.mark.parametrize("kept", [37, *(pytest.param(kept, marks=pytest.mark.long) for kept in (0, 1, 300))])
def test_a_line_that_was_cut_off_is_answered_again_and_leaves_no_trace(answer, tmp_path, kept):
    whole = answer(tmp_path / "whole") and lines(tmp_path / "whole")
    run, _ = answer(tmp_path / "run")
    path = tmp_path / "run" / "answers" / "vanilla" / "0-of-1.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"\n", len(data) // 2) + 1 + kept])
    answer(tmp_path / "run")
    assert lines(tmp_path / "run") == whole
    assert Run.load(tmp_path / "run").records(run.methods[0]).keys() == {sample.id for sample in run.samples}


def test_shares_answer_together_what_one_process_answers_alone(answer, tmp_path):
    whole = answer(tmp_path / "whole") and lines(tmp_path / "whole")
    for number in (2, 0, 1):
        answer(tmp_path / "run", shard=Shard(number, 3))
    assert lines(tmp_path / "run") == whole
    assert len(list((tmp_path / "run" / "answers" / "vanilla").iterdir())) == 3


def test_a_share_that_is_being_answered_is_refused_and_another_share_joins(tmp_path):
    with claim(tmp_path, Shard(0, 2)):
        with claim(tmp_path, Shard(1, 2)):
            pass
        with pytest.raises(RunError, match=f"process {os.getpid()} is answering this share"), claim(tmp_path, Shard(0, 2)):
            pass
        with pytest.raises(RunError, match="answered in 2 shares, not in 1"), claim(tmp_path, Shard(0, 1)):
            pass
    with claim(tmp_path, Shard(0, 1)):
        pass


@pytest.mark.parametrize("text", ["", "1", "2/2", "-1/2", "a/b", "0/0"])
def test_shares_that_make_no_sense_are_refused(text):
    with pytest.raises(SettingError, match="write NUMBER/OF"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"decoding": {"max_new_tokens": 5}}, "decoding.max_new_tokens = 4, not 5"),
        ({"batch_size": 5}, "batch_size = 4, not 5"),
        ({"scenes": 4}, "it asks 54 other samples than these 72"),
        ({"difficulty": {"noise": 0.15}}, "difficulty.noise = null, not 0.15"),
        ({"held_out": True}, "held_out = false, not true"),
        ({"methods": [{"method": "bias", "shift": -1, "label": "vanilla"}]}, "its answers of vanilla were made with"),
    ],
)
def test_other_settings_never_mix_with_old_answers(answer, tmp_path, keys, told):
    answer(tmp_path / "run")
    before = lines(tmp_path / "run")
    with pytest.raises(RunError, match=told):
        answer(tmp_path / "run", **keys)
    assert lines(tmp_path / "run") == before


def test_a_run_of_an_earlier_version_has_no_difficulty_and_goes_on_without_one(answer, tmp_path):
    answer(tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert plan.pop("difficulty") == {}
    (tmp_path / "run" / "run.json").write_text(json.dumps(plan))
    answer(tmp_path / "run")
    with pytest.raises(RunError, match=r"difficulty\.blur = null, not 2"):
        answer(tmp_path / "run", difficulty={"blur": 2})


def test_a_run_of_an_earlier_version_has_no_min_p_and_goes_on_without_it(answer, tmp_path):
    answer(tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert plan["decoding"].pop("min_p") == 0
    (tmp_path / "run" / "run.json").write_text(json.dumps(plan))
    answer(tmp_path / "run")
    with pytest.raises(RunError, match=r"decoding\.sample = false, not true"):
        answer(tmp_path / "run", decoding={"max_new_tokens": 4, "sample": True, "min_p": 0.2})


def test_another_model_is_refused(answer, tmp_path, tmp_path_factory):
    from mgap.decoding.model import load
    from mgap.pocket.tiny import build_tiny
    from mgap.run.config import Config
    from mgap.run.job import Job

    run, _ = answer(tmp_path / "run")
    other = tmp_path_factory.mktemp("other")
    build_tiny("llava", other, words=("Yes", "No", "yes", "no"))
    model = load(str(other))
    with torch.no_grad():
        model.backbone.model.get_input_embeddings().weight.add_(1)
    config = Config.of({
        "benchmark": "pope", "model": str(other), "dataset": "pocket", "scenes": 3, "methods": ["vanilla"],
        "decoding": {"max_new_tokens": 4}, "batch_size": 4,
    })  # fmt: skip
    job = Job.prepare(config, run.folder, Shard())
    with pytest.raises(RunError, match=r"model\."):
        job.begin(model)


def test_a_checkpoint_that_changed_since_the_run_was_stopped_is_refused(answer, make_config, tiny, tmp_path):
    from mgap.decoding.model import load
    from mgap.run.job import Job

    run, _ = answer(tmp_path / "run")
    model = load(str(tiny))
    with torch.no_grad():
        model.backbone.head_module.weight[5:].mul_(1.001)  # nothing that a table of scores would show
    job = Job.prepare(make_config(), run.folder, Shard())
    with pytest.raises(RunError, match=r"its answers were made with model\.tensors\.lm_head\.weight"):
        job.begin(model)


def test_a_checkpoint_that_is_overwritten_while_a_run_has_it_ends_the_run(make_config, tiny, tmp_path):
    """On a CPU the weights are the file, mapped into memory."""
    from mgap.decoding.model import load
    from mgap.run.engine import execute
    from mgap.run.job import Job

    folder = shutil.copytree(tiny, tmp_path / "checkpoint")
    weights = folder / "model.safetensors"
    job = Job.prepare(make_config(model=str(folder)), tmp_path / "run", Shard())
    run, worker = job.begin(load(str(folder), device="cpu"))
    kept = []

    def overwrite(state):
        kept.append(state.done)
        size = weights.stat().st_size
        with weights.open("r+b") as file:  # in place, as `cp` does it
            file.seek(size // 2)
            file.write(bytes(size - size // 2))

    with pytest.raises(RunError, match="were overwritten while it was in use"):
        execute(run, worker, listener=overwrite)
    assert kept == [4]
    assert sum(len(run.records(method)) for method in run.methods) == 4


def test_a_run_of_an_older_version_goes_on_and_says_what_is_not_compared(answer, tmp_path):
    run, _ = answer(tmp_path / "run")
    plan = json.loads((run.folder / "run.json").read_text())
    del plan["model"]["tensors"], plan["model"]["is_partial"]
    (run.folder / "run.json").write_text(json.dumps(plan))
    with pytest.warns(UserWarning, match="saved by an older version") as told:
        answer(tmp_path / "run")
    assert len(told) == 1


def test_a_method_can_be_added_to_a_run(answer, tmp_path):
    answer(tmp_path / "run")
    run, summary = answer(tmp_path / "run", methods=[{"method": "bias", "shift": -2}])
    assert [method.label for method in run.methods] == ["vanilla", "bias"]
    assert summary.answered == {"bias": 54}


def test_a_broken_picture_is_written_down_and_the_run_goes_on(answer, tmp_path):
    from mgap.pocket.samples import SceneRenderer

    seeds = []

    class Broken(SceneRenderer):
        def __call__(self, name):
            if name == seeds[0]:
                path = tmp_path / name
                path.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
                return path
            return super().__call__(name)

    def break_one(inner):
        seeds.append(inner.benchmark.samples[0].image)
        object.__setattr__(inner.benchmark, "picture", Broken())
        return inner

    _run, summary = answer(tmp_path / "run", worker=break_one)
    assert summary.answered == {"vanilla": 36}
    assert len(summary.failed["vanilla"]) == 18
    assert "ImageError" in summary.failed["vanilla"][0].failed
    again, summary = answer(tmp_path / "run")  # what failed is not asked again by itself
    assert summary.answered == {"vanilla": 36}
    _, summary = answer(tmp_path / "run", retry_failed=True)
    assert summary.answered == {"vanilla": 54}
    assert not any(record.failed for record in again.records(again.methods[0]).values())


def test_a_batch_that_does_not_fit_is_halved_and_one_that_never_fits_is_written_down(answer, tmp_path):
    sizes = []

    def crowded(work, samples):
        sizes.append(len(samples))
        if len(samples) > 1 or samples[0].id == "random/3":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(samples)

    _, summary = answer(tmp_path / "run", worker=lambda inner: Wrapped(inner, crowded), scenes=1, splits=["random"])
    assert sizes[:3] == [4, 2, 1]
    assert summary.answered == {"vanilla": 5}
    assert summary.failed["vanilla"] == [Record("random/3", failed="out of memory, alone in its batch")]


def test_a_sample_that_is_refused_by_itself_does_not_stop_its_batch(answer, tmp_path):
    def refuse(work, samples):
        if any(sample.id == "random/2" for sample in samples):
            raise ImageError("its processor refused the input")
        return work(samples)

    _, summary = answer(tmp_path / "run", worker=lambda inner: Wrapped(inner, refuse))
    assert [record.id for record in summary.failed["vanilla"]] == ["random/2"]


def test_a_defect_is_not_swallowed(answer, tmp_path):
    def fail(_work, _samples):
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        answer(tmp_path / "run", worker=lambda inner: Wrapped(inner, fail))


def test_a_folder_with_something_else_in_it_is_refused(answer, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match=r"holds thesis.tex and no run"):
        answer(tmp_path)


def test_a_bad_line_in_the_middle_is_refused_with_its_number(answer, tmp_path):
    run, _ = answer(tmp_path / "run")
    path = tmp_path / "run" / "answers" / "vanilla" / "0-of-1.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows[:3], "{oops\n", *rows[3:]]))
    from mgap.errors import CorruptFile

    with pytest.raises(CorruptFile, match="line 4 is no JSON"):
        run.records(run.methods[0])


def test_an_odd_environment_is_told(answer, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "one")
    from mgap.run.job import launched_shard

    with pytest.raises(SettingError, match="RANK and WORLD_SIZE"):
        launched_shard()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched_shard() == Shard(1, 4)


def test_warming_up_asks_once_more_and_writes_nothing_down(answer, tmp_path):
    asked = []

    def listen(work, samples):
        asked.append(samples)
        return work(samples)

    _, summary = answer(tmp_path / "run", worker=lambda inner: Wrapped(inner, listen), warm_up=True)
    assert asked[0] == asked[1]
    assert len(asked) == 15
    assert summary.answered == {"vanilla": 54}
    assert len(lines(tmp_path / "run")) == 54


def test_a_run_goes_on_when_the_files_of_its_benchmark_have_moved_but_not_when_they_changed(answer, tiny_model, tiny, tmp_path):
    from mgap.pocket.samples import SceneRenderer
    from mgap.run.config import Config
    from mgap.run.job import Job

    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        SceneRenderer()("pocket_200000.png").save(tmp_path / folder / "a.png")
        (tmp_path / folder / "mine.csv").write_text("image,question,label\na.png,Is there a cat?,yes\n")

    def prepare(folder):
        keys = {"benchmark": "own", "model": str(tiny), "methods": ["vanilla"], "images": str(tmp_path / folder)}
        return Job.prepare(Config.of({**keys, "questions": str(tmp_path / folder / "mine.csv")}), tmp_path / "run", Shard())

    prepare("here").begin(tiny_model)
    prepare("there").begin(tiny_model)
    (tmp_path / "there" / "mine.csv").write_text("image,question,label\na.png,Is there a dog?,yes\n")
    with pytest.raises(RunError, match=r"benchmark\.sources|other samples"):
        prepare("there")
