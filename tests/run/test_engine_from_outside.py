"""An engine of another package: one class and one entry point, and `mgap run --engine NAME` answers with it."""

import json

import pytest

from mgap.errors import SettingError
from mgap.run.config import Config
from mgap.run.job import Job
from tests.packages import installed

MODULE = '''
    """Answers every question with the same word."""
    from contextlib import contextmanager
    from pathlib import Path

    from mgap.errors import SettingError
    from mgap.run.records import Record


    class SameWorker:
        def __init__(self, word, closed):
            self.word, self.closed = word, closed

        @contextmanager
        def using(self, method):
            yield lambda samples: [Record(sample.id, f"{self.word}, says {method.label}", tokens=1) for sample in samples]

        def close(self):
            self.closed.touch()


    class SameEngine:
        @staticmethod
        def refuse(config):
            if "word" not in config.engine_options:
                raise SettingError("engine same needs a word: give engine_options word")

        @staticmethod
        def require(config, *, is_launched):
            pass

        @staticmethod
        def begin(job, *, progress, note, status):
            status("the word is ready")
            note("it is always the same")
            plan = {**job.plan(), "model": {"name": job.config.model}, "device": "none"}
            methods = [method.run_method("own") for method in job.config.methods]
            run = job.open(plan, methods, progress=progress, note=note)
            return run, SameWorker(job.config.engine_options["word"], job.out.parent / "closed")
'''


@pytest.fixture
def package(tmp_path):
    with installed(tmp_path / "site", {"same": MODULE}, {"mgap.engines": {"same": "same:SameEngine"}}):
        yield


def test_it_answers_the_run_and_its_worker_is_closed(package, run, tmp_path):
    words = ["run", "pope", "--model", "pocket/llava", "--scenes", 1, "--split", "random", "--method", "vanilla"]
    words += ["--engine", "same", "--engine-option", "word=Surely", "--out", tmp_path / "out"]
    status, out, told = run(*words)
    assert status == 0, told
    assert "| vanilla |" in out
    assert "the word is ready" in told
    assert "note: it is always the same" in told
    assert "loading" not in told
    lines = (tmp_path / "out" / "answers" / "vanilla" / "0-of-1.jsonl").read_text().splitlines()
    assert {json.loads(line)["text"] for line in lines} == {"Surely, says vanilla"}
    assert json.loads((tmp_path / "out" / "run.json").read_text())["engine"] == "same"
    assert (tmp_path / "closed").exists()


def test_its_refusal_comes_with_the_config(package):
    with pytest.raises(SettingError, match="engine same needs a word"):
        Config.of({"benchmark": "pope", "model": "pocket/llava", "methods": ["vanilla"], "engine": "same"})


def test_a_model_of_transformers_does_not_answer_for_another_engine(package, tiny_model, make_config, tmp_path):
    config = make_config(engine="same", engine_options={"word": "Yes"})
    with pytest.raises(SettingError, match="this run's engine is same, and a model of transformers was given"):
        Job.prepare(config, tmp_path / "out").begin(tiny_model)
    assert not (tmp_path / "out").exists()
