"""From a run's keys to what is asked, on the published files with pictures of noise."""

import json

import numpy as np
import pytest
from PIL import Image

from mgap.errors import BenchmarkError, SettingError
from mgap.run.benchmarks import read_bank, read_benchmark
from mgap.run.config import Config


def draw(folder, names):
    folder.mkdir()
    for name in names:
        Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(folder / name)
    return str(folder)


@pytest.fixture
def config(shared):
    def make(**keys):
        return Config.of({"model": "someone/model", "methods": ["vanilla"], "data": str(shared / "data"), **keys})

    return make


@pytest.mark.parametrize("dataset", ["coco", "aokvqa", "gqa"])
def test_pope_is_read_from_the_published_files(shared, config, tmp_path, dataset):
    (path,) = (shared / "data" / "pope" / dataset).glob(f"{dataset}_pope_*random.json")
    text = path.read_text()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    images = draw(tmp_path / "images", {row["image"] for row in rows})
    found = read_benchmark(config(benchmark="pope", dataset=dataset, images=images, splits=["random"]))
    assert [(s.image, s.truth) for s in found.samples] == [(row["image"], row["label"]) for row in rows]
    few = read_benchmark(config(benchmark="pope", dataset=dataset, images=images, splits=["random"], limit=7))
    assert len({sample.image for sample in few.samples}) == 7


def test_chair_asks_for_the_fixed_pictures(shared, config, tmp_path):
    ids = json.loads((shared / "data" / "chair" / "image_sets.json").read_text())["haltrapper_fixed_500"]
    images = draw(tmp_path / "images", [f"COCO_val2014_{number:012d}.jpg" for number in ids])
    found = read_benchmark(config(benchmark="chair", images=images))
    assert [sample.id for sample in found.samples] == [str(number) for number in ids]
    assert found.samples[0].prompt == "Please help me describe the image in detail."


def test_amber_asks_what_is_wanted(config, tmp_path):
    images = draw(tmp_path / "images", [f"AMBER_{number}.jpg" for number in range(1, 1005)])
    counts = {
        kinds: len(read_benchmark(config(benchmark="amber", images=images, kinds=kinds)).samples) for kinds in ("a", "g", "de")
    }
    assert counts == {"a": 15220, "g": 1004, "de": 4924}


def test_half_of_the_pictures_are_refused_by_name_and_count(config, tmp_path):
    images = draw(tmp_path / "images", [f"AMBER_{number}.jpg" for number in range(1, 503)])
    with pytest.raises(BenchmarkError, match="502 of 1004 pictures are missing, first AMBER_503"):
        read_benchmark(config(benchmark="amber", images=images, kinds="g"))
    kept = read_benchmark(config(benchmark="amber", images=images, kinds="g", missing="skip"))
    assert len(kept.samples) == 502
    assert "502 of 1004 samples are left out" in kept.notes[0]


def test_the_pocket_world_is_asked_in_its_own_words():
    keys = {"benchmark": "amber", "model": "pocket/llava", "methods": ["vanilla"], "scenes": 4}
    groups = {sample.group for sample in read_benchmark(Config.of(keys)).samples}
    assert groups == {"generative", "existence", "attribute-state", "attribute-number", "relation"}
    questions = read_benchmark(Config.of({**keys, "kinds": "d"}))
    assert "generative" not in {sample.group for sample in questions.samples}
    with pytest.raises(SettingError, match="one way to be asked"):
        read_benchmark(Config.of({**keys, "prompt": "vcd"}))


def test_what_several_splits_ask_alike_is_in_the_bank_once():
    keys = {"benchmark": "departure", "model": "pocket/llava", "methods": ["vanilla"], "scenes": 5}
    config = Config.of({**keys, "splits": ["random", "popular"]})
    judged = read_benchmark(config)
    same, bank = read_bank(config, judged)
    assert same is judged
    asked = [(sample.image, sample.prompt) for sample in bank]
    assert len(set(asked)) == len(asked) < len(judged.samples)  # questions about what is there are those of both splits
    assert not {sample.image for sample in bank} & {sample.image for sample in judged.samples}
    pictures = [image for image, _ in asked]
    assert pictures == sorted(pictures, key=pictures.index)  # those about one picture stand together
