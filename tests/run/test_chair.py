"""CHAIR on COCO's pictures as a run reads it, from COCO's own annotations."""

import json

from mgap.run.benchmarks import read_benchmark
from mgap.run.config import Config


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
