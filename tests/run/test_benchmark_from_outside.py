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
    from mgap.types import Sample


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
            return Benchmark("wider", "yesno", samples, lambda name: Image.new("RGB", sizes[name], keys.data or "red"))
'''


@pytest.fixture
def package(tmp_path):
    with installed(tmp_path / "site", {"wider": MODULE}, {"mgap.benchmarks": {"wider": "wider:WiderSource"}}):
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


def test_its_keys_and_its_dataset_are_its_own(package, tiny):
    assert "wider" in benchmarks()
    assert "photos" in datasets()
    keys = {"benchmark": "wider", "model": str(tiny), "images": "photos", "methods": ["vanilla"]}
    assert Config.of({**keys, "questions": "mine.jsonl"}).data_set == "photos"
    with pytest.raises(SettingError, match="splits is a key of pope and departure, not of wider"):
        Config.of({**keys, "splits": ["random"]})


def test_what_nobody_has_registered_is_refused_with_what_there_is(tiny):
    with pytest.raises(
        SettingError, match="unknown benchmark 'wider': choose from pope, chair, amber, hallusionbench, own, departure"
    ):
        Config.of({"benchmark": "wider", "model": str(tiny), "methods": ["vanilla"]})
