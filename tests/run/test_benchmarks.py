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


def test_repope_asks_what_was_kept_of_the_pictures_that_are_there(shared, config, tmp_path):
    kept = [json.loads(line) for line in (shared / "data" / "repope" / "coco_repope_popular.json").read_text().splitlines()]
    names = list(dict.fromkeys(row["image"] for row in kept))[:3]
    keys = {"benchmark": "repope", "images": draw(tmp_path / "images", names), "splits": ["popular"]}
    with pytest.raises(BenchmarkError, match="497 of 500 pictures are missing"):
        read_benchmark(config(**keys))
    found = read_benchmark(config(**keys, missing="skip"))
    rows = [row for row in kept if row["image"] in names]
    assert [(s.id, s.prompt, s.truth) for s in found.samples] == [
        (f"popular/{row['question_id']}", row["text"], row["label"]) for row in rows
    ]
    assert "497 pictures are missing" in found.notes[-2]
    assert found.notes[-1].startswith(f"popular: {len(rows)} of 18 questions, labelled by RePOPE")


def test_there_are_no_new_labels_of_drawn_scenes():
    drawn = Config.of({"benchmark": "repope", "model": "pocket/llava", "methods": ["vanilla"]})
    with pytest.raises(SettingError, match="benchmark repope: it is not part of the pocket world; give images"):
        read_benchmark(drawn)


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
