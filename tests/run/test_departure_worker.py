"""Departures as a run measures them: bank and threshold, one record a sample, the same in any batch, counted at the end."""

import json

import pytest
import torch

import mgap
from mgap.benchmarks.base import split_by_picture
from mgap.diagnosis.departure import STRENGTHS, prepare
from mgap.diagnosis.departure_tally import departure_tally
from mgap.errors import BenchmarkError, RunError, SettingError
from mgap.pocket.benchmark import DEVELOPMENT, TEST, pope
from mgap.pocket.scenes import make_scene, render
from mgap.registry import METHODS
from mgap.run.departure_worker import DepartureWorker
from mgap.run.records import Record, RunMethod
from mgap.types import Sample


def picture(name):
    return render(make_scene(int(name.removeprefix("pocket_").removesuffix(".png"))))


def asked(first, count):
    questions = enumerate(pope("adversarial", first, count))
    return [Sample(f"{first}/{n}", f"pocket_{q.scene.seed}.png", q.text, "adversarial", q.label) for n, q in questions]


@pytest.fixture(scope="module")
def pocket():
    return mgap.load("pocket/llava", dtype=torch.float32)


@pytest.fixture(scope="module")
def bank_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def manifold(pocket, bank_folder):
    return prepare(pocket, asked(DEVELOPMENT, 10), picture, bank_folder, batch_size=30)


def build(method):
    return None if method.method == "vanilla" else METHODS.get(method.method).of(**method.settings)


@pytest.fixture(scope="module")
def worker(pocket, manifold):
    return DepartureWorker(pocket, picture, manifold, build)


@pytest.fixture(scope="module")
def judged():
    return asked(TEST, 4)


def test_records_hold_a_distance_for_every_strength(worker, judged):
    with worker.using(RunMethod("Blind", "blind")) as work:
        records = work(judged)
    assert [record.id for record in records] == [sample.id for sample in judged]
    assert all(list(record.extra["distance"]) == ["0", "0.25", "0.5", "0.75", "1"] for record in records)
    assert {record.text for record in records} <= {"Yes", "No"}
    assert all(record.image and record.prompt and record.rows == len(judged) for record in records)
    assert Record.of(json.loads(records[0].line())) == records[0]
    mean = [sum(record.extra["distance"][key] for record in records) for key in ("0", "0.5", "1")]
    assert mean == sorted(mean)  # a contrast leads away


@pytest.mark.long
def test_batches_do_not_change_distances_and_vanilla_is_strength_0(worker, judged):
    with worker.using(RunMethod("VCD", "vcd")) as work:
        together = work(judged)
        apart = [record for sample in judged for record in work([sample])]
    with worker.using(RunMethod("LLaVA", "vanilla")) as work:
        plain = work(judged)
    for one, other, vanilla in zip(together, apart, plain, strict=True):
        assert one.extra["distance"] == pytest.approx(other.extra["distance"], rel=1e-3, abs=1e-3)
        assert vanilla.extra["distance"] == {"0": pytest.approx(one.extra["distance"]["0"], rel=1e-3, abs=1e-3)}
        assert vanilla.text == one.text == other.text


def test_the_bank_is_collected_once_and_kept_with_the_run(pocket, manifold, bank_folder):
    seen = []
    again = prepare(pocket, asked(DEVELOPMENT, 10), picture, bank_folder, k=5, progress=lambda *told: seen.append(told))
    assert {stage for stage, _, _ in seen} == {"members measured for tau"}
    assert torch.equal(again.states, manifold.states)
    assert again.to_json()["k"] == 5
    how = {"tau": manifold.tau, "k": 10, "delta": 0.05, "bank": 60, "metric": "euclidean", "members": 60, "search": "exact"}
    assert manifold.to_json() == {**how, "interval": list(manifold.interval)}
    with pytest.raises(RunError, match="other rows"):
        prepare(pocket, asked(DEVELOPMENT, 9), picture, bank_folder)


def test_a_bank_that_was_interrupted_is_gone_on_with(pocket, manifold, tmp_path):
    rows, seen = asked(DEVELOPMENT, 10), []

    def failing(name):
        if name == rows[45].image:
            raise OSError("the disk with the pictures is gone")
        return picture(name)

    with pytest.raises(OSError, match="is gone"):
        prepare(pocket, rows, failing, tmp_path, batch_size=30)
    with pytest.raises(SettingError, match="rows_sha256"):
        prepare(pocket, rows[:50], picture, tmp_path, batch_size=30)
    whole = prepare(pocket, rows, picture, tmp_path, batch_size=30, progress=lambda *told: seen.append(told))
    assert [told for told in seen if told[0] == "states for the bank"] == [("states for the bank", 60, 60)]
    assert torch.equal(whole.states, manifold.states)


def test_a_bank_is_not_collected_under_a_method(pocket, tmp_path):
    with pocket.using(mgap.Blind()), pytest.raises(SettingError, match="plain decoding"):
        prepare(pocket, asked(DEVELOPMENT, 2), picture, tmp_path)


def test_bank_and_judged_samples_share_no_picture():
    samples = asked(TEST, 10)
    bank, rest = split_by_picture(samples, 0.3)
    assert len({s.image for s in bank}) == 3
    assert not {s.image for s in bank} & {s.image for s in rest}
    assert sorted(s.id for s in (*bank, *rest)) == sorted(s.id for s in samples)
    assert split_by_picture(samples, 0.3) == (bank, rest)
    assert split_by_picture(samples, 0.3, seed=1) != (bank, rest)
    for share in (0.0, 1.0, 0.01):
        with pytest.raises(SettingError, match="leaves none"):
            split_by_picture(samples, share)


@pytest.mark.parametrize("strengths", [(), (-1.0,), (float("nan"),)])
def test_strengths_that_mean_nothing_are_refused(pocket, manifold, strengths):
    with pytest.raises(SettingError, match="strengths"):
        DepartureWorker(pocket, picture, manifold, build, strengths=strengths)


def test_vanilla_needs_strength_0(pocket, manifold):
    worker = DepartureWorker(pocket, picture, manifold, build, strengths=(1.0,))
    with pytest.raises(SettingError, match="vanilla"), worker.using(RunMethod("plain", "vanilla")):
        pass


def line(number, *distances):
    return Record(str(number), extra={"distance": dict(zip(("0", "1"), distances, strict=True))})


def test_departures_are_counted_beyond_tau():
    records = [line(0, 1.0, 3.0), line(1, 2.0, 2.0), line(2, 2.5, 9.0), Record("3", failed="no picture")]
    samples = [Sample(str(n), f"{n // 2}.png", "?", "", "yes") for n in range(4)]
    tally = departure_tally(samples, records, 2.0)  # at tau is not beyond it
    assert tally.pictures == ("0.png", "1.png")
    assert {name: (rate.value, rate.of) for name, rate in tally.rates().items()} == {
        "0": (1 / 3, 3),
        "1": (2 / 3, 3),
    }
    assert tally.right == {"0": False, "1": True, "2": False}


def test_records_of_something_else_are_refused():
    with pytest.raises(BenchmarkError, match="an answer"):
        departure_tally([], [Record("7", "Yes")], 1.0)
    with pytest.raises(BenchmarkError, match="other strengths"):
        departure_tally([], [line(0, 1.0, 2.0), Record("1", extra={"distance": {"0": 1.0}})], 1.0)


def test_the_papers_strengths_are_the_default():
    assert STRENGTHS == (0.0, 0.25, 0.5, 0.75, 1.0)
