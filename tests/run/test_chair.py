"""CHAIR on COCO's pictures as a run reads it, from COCO's own annotations; and captions that a limit cut off."""

import json

import pytest

from mgap.benchmarks.base import Benchmark
from mgap.benchmarks.chair.scorer import ChairScorer
from mgap.errors import SettingError
from mgap.run.benchmarks import read_benchmark
from mgap.run.config import Config
from mgap.run.engine import RunState
from mgap.run.job import Job
from mgap.run.live_score import LiveScore
from mgap.run.records import Record, Run
from mgap.types import Sample
from tests.reports.runs import VANILLA, write_run


def test_ground_truth_is_built_with_the_language_of_the_score(tmp_path):
    pictures = [{"id": 7, "file_name": "COCO_val2014_000000000007.jpg"}]
    instances = {
        "images": pictures,
        "categories": [{"id": 18, "name": "dog"}],
        "annotations": [{"image_id": 7, "category_id": 18}],
    }
    captions = {"images": pictures, "annotations": [{"image_id": 7, "caption": "A woman, seated on a bench"}]}
    (tmp_path / "instances_val2014.json").write_text(json.dumps(instances))
    (tmp_path / "captions_val2014.json").write_text(json.dumps(captions))
    (tmp_path / pictures[0]["file_name"]).write_bytes(b"a picture")
    given = {
        "benchmark": "chair",
        "model": "some/model",
        "methods": ["vanilla"],
        "image_set": "1",
        "scoring": {"language": "builtin"},
    }
    found = read_benchmark(Config.of({**given, "images": str(tmp_path), "data": str(tmp_path)}))
    assert found.samples[0].truth == ["bench", "chair", "dog", "person"]


def test_dropping_unfinished_sentences_is_refused_before_a_run_that_only_asks_questions(tmp_path):
    question = Sample("1", "1.png", "Is there a dog?", "existence", "no")
    benchmark = Benchmark("amber de", "amber", (question,), str, {"relation": {"dog": []}, "safe_words": []})
    keys = {"benchmark": "amber", "model": "pocket/llava", "methods": ["vanilla"], "scoring": {"unfinished": "drop"}}
    with pytest.raises(SettingError, match="unfinished=drop acts on captions, and only questions are asked: leave it out"):
        Job.prepare(Config.of(keys), tmp_path / "run", benchmark=benchmark)
    assert not (tmp_path / "run").exists()


def test_the_score_shown_during_a_run_is_the_one_at_its_end(tmp_path):
    samples = [Sample(str(n), f"{n}.png", "Describe it.", "captions", ["dog"]) for n in range(2)]
    records = [Record(s.id, "A dog. A cat", stop=stop) for s, stop in zip(samples, ("end", "length"), strict=True)]
    run = Run.load(write_run(tmp_path / "run", samples, {"Vanilla": records}, benchmark={"name": "chair", "task": "captions"}))
    for unfinished, shown in (("keep", "CHAIRs 100.0"), ("drop", "CHAIRs 50.0")):
        assert LiveScore(run, ChairScorer(unfinished=unfinished)).add(RunState(VANILLA, 2, 2)) == shown
