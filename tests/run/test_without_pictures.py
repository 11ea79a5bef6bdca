"""Questions without a picture in a run: asked as text alone, in batches of their own, by methods that can."""

import json
import multiprocessing
import os
import signal

import pytest
from PIL import Image

import mgap
from mgap.benchmarks.hallusionbench.questions import FILE
from mgap.benchmarks.own import read_own
from mgap.errors import BenchmarkError, ModelError, SettingError
from mgap.reports.report import report_files
from mgap.reports.scores import score
from mgap.run.benchmarks import read_benchmark
from mgap.run.config import Config
from mgap.run.engine import batches, execute
from mgap.run.job import Job
from mgap.run.records import PLAIN, Run

SETS = 3
BIAS = {"method": "bias", "shift": 24.0, "up": ["is", "picture"], "down": ["the"]}
METHODS = ["vanilla", BIAS, {"method": "vcd", "alpha": 4.0}]


def question(category, number, figure, asked, shown):
    place = {"category": category, "subcategory": "chart", "set_id": str(number), "figure_id": str(figure)}
    filename = f"./{category}/chart/{number}_{figure}.png" if shown else None
    asks = {
        "question_id": str(asked),
        "question": f"Is the number {number} above {asked}?",
        "gt_answer": str((number + asked) % 2),
    }
    return {**place, **asks, "visual_input": str(shown), "filename": filename}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three sets of VS, each of two questions without a picture, about one, and about it edited; and one set of VD."""
    folder = tmp_path_factory.mktemp("hallusionbench")
    rows = [question("VS", number, figure, n, figure) for number in range(SETS) for figure in range(3) for n in range(2)]
    rows += [question("VD", 0, figure, 0, 1 + figure) for figure in range(2)]
    (folder / FILE).write_text(json.dumps(rows))
    for place, row in enumerate(row for row in rows if row["filename"]):
        path = folder / row["filename"]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64 + 16 * (place % 2), 64), (20 * place % 256, 80, 200)).save(path)
    return folder


@pytest.fixture
def keys(folder, checkpoints, family):
    return {
        "benchmark": "hallusionbench", "model": str(checkpoints[family]), "data": str(folder), "images": str(folder),
        "methods": METHODS, "decoding": {"max_new_tokens": 4}, "batch_size": 5, "dtype": "float32",
    }  # fmt: skip


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype="float32")


def do(keys, out, model, listener=None, notes=None):
    job = Job.prepare(Config.of(keys), out)
    run, worker = job.begin(model, note=None if notes is None else notes.append)
    return run, execute(run, worker, shard=job.shard, labels=job.labels, listener=listener)


def records(run):
    return {method.label: run.records(method) for method in run.methods}


@pytest.mark.both_families
def test_they_reach_the_model_without_image_tokens_and_in_batches_of_their_own(keys, exact, tmp_path):
    prompts, image = [], exact.backbone.image_token_id  # rows, and how many of them have image tokens

    def watch(_model, _args, kwargs):
        if (ids := kwargs["input_ids"]).shape[1] > 1:
            prompts.append((len(ids), int((ids == image).any(1).sum())))

    tower = []
    handles = [
        exact.backbone.model.register_forward_pre_hook(watch, with_kwargs=True),
        exact.backbone.vision.register_forward_hook(lambda *_: tower.append(len(prompts))),
    ]
    try:
        run, _ = do({**keys, "methods": ["vanilla"], "prefill": "own"}, tmp_path / "run", exact)
    finally:
        for handle in handles:
            handle.remove()
    assert prompts == [(5, 5), (5, 5), (4, 4), (5, 0), (1, 0)]
    assert max(tower) < 4  # no picture is read for the last two
    found = records(run)["vanilla"]
    for sample in run.samples:
        record, own = found[sample.id], exact.answer(None, sample.prompt, max_new_tokens=4)
        assert bool(record.image) == bool(sample.image)
        if not sample.image:
            assert (record.text, record.prompt) == (own.text, own.prompt)
            assert record.prompt == exact.backbone.render(sample.prompt, pictures=0)


@pytest.mark.both_families
def test_a_method_that_needs_a_picture_decodes_plainly_there_and_the_record_says_so(keys, exact, tmp_path):
    notes = []
    run, _ = do(keys, tmp_path / "run", exact, notes=notes)
    found = records(run)
    assert "vcd needs a picture: 6 questions without one are answered by plain decoding, as records say" in notes
    for sample in run.samples:
        plain, bias, vcd = (found[label][sample.id] for label in ("vanilla", "bias", "vcd"))
        told = {} if sample.image else {PLAIN: "vcd needs a picture, and this question has none"}
        assert (plain.extra, bias.extra, vcd.extra) == ({}, {}, told)
        if not sample.image:
            assert vcd.text == plain.text
            with exact.using(mgap.Bias(shift=24.0, up=("is", "picture"), down=("the",))):
                assert bias.text == exact.answer(None, sample.prompt, max_new_tokens=4).text
        else:
            with exact.using(mgap.VCD(alpha=4.0)):
                assert vcd.text == exact.answer(tmp_path / keys["images"] / sample.image, sample.prompt, max_new_tokens=4).text
    assert any(found["vcd"][s.id].text != found["vanilla"][s.id].text for s in run.samples if s.image)


@pytest.mark.one_family
def test_it_is_scored_reported_and_resumed_where_it_was_stopped(keys, exact, tmp_path):
    whole, _ = do(keys, tmp_path / "whole", exact)
    for stop in (10, 19):  # before the questions without a picture, and among them

        def listener(state, stop=stop):
            if state.method.method == "vcd" and state.done >= stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            do(keys, tmp_path / f"stopped-{stop}", exact, listener)
        again, summary = do(keys, tmp_path / f"stopped-{stop}", exact)
        assert set(summary.answered.values()) == {20}
        for label, by_id in records(again).items():
            assert {name: (r.text, r.extra) for name, r in by_id.items()} == {
                name: (r.text, r.extra) for name, r in records(whole)[label].items()
            }
    scores = score(Run.load(tmp_path / "whole"))
    assert list(scores.results["vcd"].groups) == ["all", "VD", "VS"]
    rates = scores.results["vcd"].groups["all"].rates
    assert {name: rates[name].of for name in ("accuracy", "fAcc", "qAcc", "hard_pairs")} == {
        "accuracy": 20, "fAcc": 8, "qAcc": 7, "hard_pairs": 7
    }  # fmt: skip
    assert "vcd: 6 answers are plain decoding's, to questions without the picture that it needs" in scores.warnings
    against = scores.results["vcd"].groups["all"].against
    assert against.pairs is not None
    assert sum(against.pairs) <= 7
    page = report_files([scores])["report.html"]
    assert all(words in page for words in ("qAcc", "Pairs gained", "from a bootstrap over sets"))
    seen = score(Run.load(tmp_path / "whole"), counting="vlmevalkit").results["vcd"].groups["all"]
    assert (seen.samples, seen.rates["qAcc"].of) == (14, 7)


@pytest.mark.one_family
def test_questions_with_a_picture_alone_are_counted_as_vlmevalkit_does(keys, exact, tmp_path):
    run, _ = do({**keys, "methods": ["vanilla"], "pictures": "only", "prompt": "yes-or-no"}, tmp_path / "run", exact)
    assert len(run.samples) == 14
    assert all(sample.image and sample.prompt.endswith("? Please answer yes or no.") for sample in run.samples)
    assert run.plan["benchmark"]["lexicon"]["prompt"] == "yes-or-no"
    assert score(run).scorer == {"task": "hallusionbench", "parser": "refusals-unread", "counting": "vlmevalkit"}
    with pytest.raises(SettingError, match="left out those without a picture"):
        score(run, counting="authors")


@pytest.mark.one_family
def test_a_limit_counts_pictures_and_keeps_the_questions_before_them(keys):
    asked = read_benchmark(Config.of({**keys, "limit": 3})).samples
    assert [sample.id for sample in asked] == [
        f"VS/chart/{place}/{n}" for place in ("0/0", "0/1", "0/2", "1/0", "1/1") for n in (0, 1)
    ]
    shown = [bool(sample.image) for batch in batches(asked, 4) for sample in batch]
    assert shown == sorted(shown, reverse=True)
    assert [len(batch) for batch in batches(asked, 4)] == [4, 2, 4]


@pytest.mark.one_family
def test_departures_are_measured_with_a_picture_in_view(keys, exact, tmp_path):
    measured = {
        "benchmark": "departure",
        "dataset": "hallusionbench",
        "departure": {"k": 2},
        "decoding": {},
        "methods": ["vanilla", METHODS[2]],
    }
    job = Job.prepare(Config.of({**keys, **measured}), tmp_path / "run")
    assert len(job.benchmark.samples) + len(job.bank) == 14
    assert all(sample.image for sample in (*job.benchmark.samples, *job.bank))
    assert job.benchmark.notes[-1].endswith("6 questions without one are left out")
    run, worker = job.begin(exact)
    assert set(execute(run, worker).answered.values()) == {len(job.benchmark.samples)}
    assert "0.5" in score(run).figures  # by strength


@pytest.mark.one_family
def test_a_model_that_cannot_be_asked_without_a_picture_is_refused_before_it_answers(keys, exact, tmp_path, monkeypatch):
    always = "{% for message in messages %}USER: <image>\n{{ message['content'][-1]['text'] }}{% endfor %}ASSISTANT:"
    monkeypatch.setattr(exact.backbone.processor, "chat_template", always)
    with pytest.raises(ModelError, match=r"6 questions come without a picture.*leaves room for a picture.*pictures: only"):
        do(keys, tmp_path / "run", exact)
    do({**keys, "methods": ["vanilla"], "pictures": "only"}, tmp_path / "only", exact)


def test_the_switch_is_a_key_of_this_benchmark_alone(tiny):
    with pytest.raises(SettingError, match="pictures is a key of hallusionbench, not of pope"):
        Config.of({"benchmark": "pope", "model": str(tiny), "methods": ["vanilla"], "pictures": "only"})
    with pytest.raises(SettingError, match="pictures='some': choose from all, only"):
        read_benchmark(Config.of({"benchmark": "hallusionbench", "model": str(tiny), "methods": ["vanilla"], "pictures": "some",
                                  "images": "photos", "data": "."}))  # fmt: skip


@pytest.mark.parametrize("image", [["a.png", "b.png"], [], "", None])
def test_own_questions_name_one_picture_each(tmp_path, image):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"image": image, "question": "Is there a dog?", "label": "no"}) + "\n")
    with pytest.raises(BenchmarkError, match=r"line 1: image is .*; a record has image, question, label"):
        read_own(tmp_path / "mine.jsonl", tmp_path)


def answer_and_die(keys, out, after):
    """In a process of its own, which kills itself after so many answers of the last method."""
    model = mgap.load(keys["model"], device="cpu", dtype="float32")

    def listener(state):
        if state.method.method == "vcd" and state.done >= after:
            os.kill(os.getpid(), signal.SIGKILL)

    do(keys, out, model, listener)


@pytest.mark.long
@pytest.mark.one_family
def test_a_killed_run_goes_on_without_loss(keys, exact, tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mgap.run.job", "mgap.run.engine"])
    whole, _ = do(keys, tmp_path / "whole", exact)
    for after in (5, 18):  # among questions with a picture, and among those without
        process = context.Process(target=answer_and_die, args=(keys, str(tmp_path / "killed"), after), daemon=True)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    run, _ = do(keys, tmp_path / "killed", exact)
    assert [
        (tmp_path / "killed" / "answers" / name / "0-of-1.jsonl").read_text().count("\n") for name in ("vanilla", "vcd")
    ] == [20, 20]
    for label, by_id in records(run).items():
        assert {name: record.text for name, record in by_id.items()} == {n: r.text for n, r in records(whole)[label].items()}
