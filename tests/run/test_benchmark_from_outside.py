"""A benchmark of another package: one class and one entry point, and `mgap run` knows it."""

import json

import pytest

from mgap.errors import SettingError
from mgap.run.config import Config, benchmarks, datasets
from tests.packages import installed

MODULE = '''
    """Whether a picture is wider than it is high."""
    from PIL import Image

    from mgap.benchmarks.base import Benchmark
    from mgap.benchmarks.pope.scorer import PopeScorer
    from mgap.types import Sample


    class WiderScorer(PopeScorer):
        remark = "Two pictures are few."


    class WiderSource:
        keys = frozenset({"questions"})
        datasets = ("photos",)
        max_new_tokens = 3

        @staticmethod
        def read(keys):
            sizes = {"wide.png": (64, 32), "high.png": (32, 64)}
            samples = tuple(
                Sample(name, name, "Is the picture wider than high?", "shape", "yes" if width > height else "no")
                for name, (width, height) in sizes.items()
            )
            return Benchmark("wider", "shapes", samples, lambda name: Image.new("RGB", sizes[name], keys.data or "red"))
'''


@pytest.fixture
def package(tmp_path):
    points = {"mgap.benchmarks": {"wider": "wider:WiderSource"}, "mgap.scorers": {"shapes": "wider:WiderScorer"}}
    with installed(tmp_path / "site", {"wider": MODULE}, points):
        yield


def test_it_is_run_scored_and_resumed_like_any_other(package, run, tiny, tmp_path):
    words = ["run", "wider", "--model", tiny, "--images", tmp_path, "--method", "vanilla", "--out", tmp_path / "out"]
    status, out, told = run(*words)
    assert status == 0, told
    assert "| vanilla |" in out
    plan = json.loads((tmp_path / "out" / "run.json").read_text())
    assert plan["benchmark"]["name"] == "wider"
    assert plan["decoding"]["max_new_tokens"] == 3
    answers = (tmp_path / "out" / "answers" / "vanilla" / "0-of-1.jsonl").read_text()
    assert run(*words)[0] == 0
    assert (tmp_path / "out" / "answers" / "vanilla" / "0-of-1.jsonl").read_text() == answers


def test_it_is_listed_compared_scored_again_and_reported_like_any_other(package, run, tiny, tmp_path):
    assert "wider           pictures: photos; answers of up to 3 tokens; its own keys: questions" in run("ls", "benchmarks")[1]
    status, told, error = run(
        "run", "wider", "--model", tiny, "--images", tmp_path, "--method", "vanilla", "--method", "bias", "--set",
        "bias.shift=9", "--out", tmp_path / "out",
    )  # fmt: skip
    assert status == 0, error
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    shape = scores["methods"]["bias"]["groups"]["shape"]
    assert (shape["samples"], sum(shape["counts"].values()) + shape["unparsed"]) == (2, 2)
    assert shape["against"]["differences"].keys() >= {"accuracy", "f1"}
    assert run("score", tmp_path / "out", "--parser", "opera")[0] == 0
    again = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert again["scorer"] == {"task": "shapes", "parser": "opera"}
    assert run("report", tmp_path / "out")[0] == 0
    for text in (told, (tmp_path / "out" / "report.html").read_text()):
        assert "Two pictures are few." in text


def test_departures_are_measured_on_its_pictures(package, tiny):
    keys = {"benchmark": "departure", "model": str(tiny), "images": "photos", "methods": ["vanilla"]}
    assert Config.of({**keys, "dataset": "photos"}).asks == "wider"
    assert Config.of({**keys, "dataset": "gqa"}).asks == "pope"


def test_its_keys_and_its_dataset_are_its_own(package, tiny):
    assert "wider" in benchmarks()
    assert "photos" in datasets()
    keys = {"benchmark": "wider", "model": str(tiny), "images": "photos", "methods": ["vanilla"]}
    assert Config.of({**keys, "questions": "mine.jsonl"}).data_set == "photos"
    with pytest.raises(SettingError, match="splits is a key of pope and repope and departure, not of wider"):
        Config.of({**keys, "splits": ["random"]})


def test_what_nobody_has_registered_is_refused_with_what_there_is(tiny):
    choices = "pope, repope, chair, amber, mme, hallusionbench, own, departure"
    with pytest.raises(SettingError, match=f"unknown benchmark 'wider': choose from {choices}"):
        Config.of({"benchmark": "wider", "model": str(tiny), "methods": ["vanilla"]})
