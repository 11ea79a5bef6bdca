"""Departures along whole descriptions as a run measures them: bank, records, strengths, resume, shards, scores and report."""

import json

import pytest

from mgap.decoding.answer_states import answer_states
from mgap.errors import MgapError, RunError, SettingError
from mgap.pocket.benchmark import DEVELOPMENT, TEST
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.reports.departure_tables import departures_by_step
from mgap.reports.report import report_files
from mgap.reports.scores import score
from mgap.run.answer_departure_worker import variants_of
from mgap.run.config import Config
from mgap.run.folder import Shard
from mgap.run.job import Job
from mgap.run.records import Run, RunMethod
from mgap.types import Decoding
from tests.reports.html import check_page

METHODS = ["vanilla", "vcd", {"method": "m3id", "lam": 0.4}, "mgap"]
KEYS = {
    "benchmark": "departure", "methods": METHODS, "decoding": {"max_new_tokens": 5}, "batch_size": 2,
    "departure": {"along": "answers", "strengths": [0, 1], "k": 3},
}  # fmt: skip


@pytest.fixture
def done(answer, tmp_path):
    return answer(tmp_path / "run", **KEYS)[0]


def lines(run):
    """What was measured; times and dates aside."""
    return {
        method.label: {n: (r.text, r.tokens, r.extra) for n, r in sorted(run.records(method).items())} for method in run.methods
    }


def test_a_record_has_a_distance_for_every_token_at_every_strength(done):
    keys = {"vanilla": ["0"], "vcd": ["0", "1"], "m3id": ["own"], "mgap": ["0", "1"]}
    assert {int(sample.id) for sample in done.samples} == {TEST, TEST + 1, TEST + 2}
    for method in done.methods:
        for record in done.records(method).values():
            distances = record.extra["distances"]
            assert list(distances) == keys[method.label]
            assert len(list(distances.values())[-1]) == record.tokens > 0
            assert record.stop in ("end", "length")
            assert all(d == float(f"{d:.6g}") > 0 for along in distances.values() for d in along)
    plain, other = (list(done.records(method).values()) for method in done.methods[:2])
    for one, two in zip(plain, other, strict=True):
        assert two.extra["distances"]["0"] == pytest.approx(one.extra["distances"]["0"], rel=1e-2)


def test_the_bank_is_of_every_token_of_plain_descriptions_of_other_scenes(done, tiny_model):
    bank = Bank.load(done.folder / "bank")
    assert done.plan["departure"] == {
        **Manifold.of(bank, k=3).to_json(),
        "strengths": [0.0, 1.0],
        "along": "answers",
    }
    job = Job.prepare(Config.of({**KEYS, "model": "pocket/llava", "scenes": 3}))
    assert [int(sample.id) for sample in job.bank] == [DEVELOPMENT, DEVELOPMENT + 1, DEVELOPMENT + 2]
    with answer_states(tiny_model, None, Decoding(max_new_tokens=5)) as read:
        rows = [job.benchmark.picture(sample.image) for sample in job.bank], [sample.prompt for sample in job.bank]
        answers = read(tiny_model.backbone.encode(*rows))
    assert bank.tokens.tolist() == [token for answer in answers for token in answer.tokens]


def test_a_run_that_was_cut_off_goes_on_and_shares_give_the_same(done, answer, tmp_path):
    for method in done.methods[1:]:
        path = done.folder / "answers" / method.folder / "0-of-1.jsonl"
        path.write_text(path.read_text()[: len(path.read_text()) // 2])  # in the middle of a line
    before = {method.label: len(done.records(method)) for method in done.methods}
    assert before["vanilla"] == 3 > before["vcd"]
    again, _ = answer(done.folder, **KEYS)
    for number in (1, 0):
        shared, _ = answer(tmp_path / "shared", shard=Shard(number, 2), **KEYS)
    assert lines(again) == lines(shared)
    assert all(len(again.records(method)) == 3 for method in again.methods)


def test_other_settings_are_refused_in_the_same_folder(done, make_config):
    with pytest.raises(RunError, match="decoding"):
        Job.prepare(make_config(**{**KEYS, "decoding": {"max_new_tokens": 6}}), done.folder)


def test_scores_and_report_need_no_model(done):
    scores = score(Run.load(done.folder))
    counted, tau = departures_by_step(scores), done.plan["departure"]["tau"]
    assert list(counted) == ["vanilla", "vcd", "m3id", "mgap"]
    for label, result in scores.results.items():
        records = done.records(result.arm).values()
        for strength, along in counted[label].items():
            assert [step for step, _, _ in along] == list(range(1, len(along) + 1))
            distances = [record.extra["distances"][strength] for record in records]
            rate = result.groups["steps"].rates[strength]
            assert rate.of == sum(of for _, _, of in along) == sum(map(len, distances))
            assert rate.value * rate.of == pytest.approx(sum(departed for _, departed, _ in along))
            any_departed = sum(any(d > tau for d in steps) for steps in distances)
            assert result.groups["answers"].rates[strength].value == pytest.approx(any_departed / 3)
            mean = sum(map(sum, distances)) / rate.of
            assert result.groups["distance"].rates[f"distance at {strength}"].value == pytest.approx(mean)
            first = result.groups["step 1"].rates[strength]
            assert (first.of, first.value * 3) == (3, pytest.approx(along[0][1]))
    files = report_files([scores])
    tables = json.loads(files["report.json"])["tables"]["results"]
    assert [column["name"] for column in tables[0]["columns"]][-3:] == ["0 \u2193", "1 \u2193", "own \u2193"]
    page = check_page(files["report.html"])
    drawn = [a["aria-label"] for _, a in page.tags if a.get("role") == "img"]
    assert drawn[0].startswith("Departed steps at strength 1")
    assert "own: the strength is no setting" in files["report.md"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"departure": {"along": "words"}}, "unknown along of departure 'words'"),
        ({"departure": {"along": "answers"}, "splits": ["random"]}, "of descriptions, which have no splits"),
        ({"departure": {"k": 3}, "image_set": "mine.txt"}, "POPE's questions, which have no image_set"),
        ({"departure": {"along": "answers"}, "decoding": {"num_beams": 2}}, "along answers, which are greedy"),
        ({"benchmark": "chair", "departure": {"along": "answers"}}, "departure is a key of departure"),
    ],
)
def test_keys_that_mean_nothing_are_refused(make_config, change, told):
    with pytest.raises(MgapError, match=told):
        make_config(**{"benchmark": "departure", **change})


def test_a_method_without_a_state_and_vanilla_without_strength_0_are_refused(answer, tmp_path):
    opera = {**KEYS, "methods": ["opera"]}
    with pytest.raises(SettingError, match=r"^opera "):
        answer(tmp_path / "opera", **opera)
    with pytest.raises(SettingError, match="vanilla is measured at strength 0"):
        answer(tmp_path / "plain", **{**KEYS, "departure": {"along": "answers", "strengths": [1], "k": 3}})
    assert not (tmp_path / "opera" / "bank").exists()  # said before anything is collected
    with pytest.raises(SettingError, match="no strengths"):
        variants_of(None, ())


def test_descriptions_are_as_long_as_those_that_chair_asks_for(make_config):
    keys = {**KEYS, "decoding": {}}
    assert make_config(**keys).decode().max_new_tokens == 96
    assert make_config(**{**keys, "departure": {}}).decode().max_new_tokens == 1
    real = Config.of({**keys, "model": "llava-hf/llava-1.5-7b-hf", "images": "coco/val2014", "image_set": "100"})
    assert (real.asks, real.decode().max_new_tokens) == ("chair", 512)


def test_pictures_that_cannot_be_opened_are_failures_of_their_own(answer, tmp_path, monkeypatch):
    from mgap.errors import ImageError
    from mgap.pocket.samples import SceneRenderer

    def drawn(self, name, real=SceneRenderer.__call__):
        if name == f"pocket_{TEST + 1}.png":
            raise ImageError("it cannot be opened")
        return real(self, name)

    monkeypatch.setattr(SceneRenderer, "__call__", drawn)
    run, summary = answer(tmp_path / "run", **{**KEYS, "methods": ["vanilla"]})
    assert [record.id for record in summary.failed["vanilla"]] == [str(TEST + 1)]
    assert set(departures_by_step(score(run))) == {"vanilla"}
    assert {method.label for method in run.methods} == {RunMethod("vanilla", "vanilla").label}


@pytest.mark.long
def test_the_experiment_runs_on_a_pocket_model_from_the_command_line(run, tmp_path):
    words = ["experiments/departure-captions.yaml", "--model", "pocket/llava", "--scenes", 2, "--out", tmp_path / "run"]
    words += ["--method", "vanilla", "--method", "blind", "--decoding", "max_new_tokens=12"]
    status, out, error = run("run", *words)
    assert status == 0, error
    assert "Departed steps, percent" in out
    scores = (tmp_path / "run" / "scores.json").read_text()
    assert run("run", *words)[:2] == (0, out)  # everything is there already
    assert run("score", tmp_path / "run")[0] == 0
    assert (tmp_path / "run" / "scores.json").read_text() == scores
    assert run("report", tmp_path / "run", "--out", tmp_path / "report")[0] == 0
    assert "Departed steps at strength 0.25" in (tmp_path / "report" / "report.html").read_text()
