"""Copies of checkpoints that vLLM can read: the same model, made once, whole or not at all. tests_vllm serves them."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors import safe_open

import mgap
from mgap.errors import ModelError
from mgap.registry import EMBEDDED
from mgap.serving.checkpoint import MARK, servable

PROMPT = "Is there a dog in the image?"


@pytest.fixture
def copied(family, checkpoints, tmp_path):
    return servable(str(checkpoints[family]), tmp_path / "copy")


def names_in(folder):
    found = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            found.update(tensors.keys())
    return found


def same_model(one, other):
    ours, theirs = one.backbone.model.state_dict(), other.backbone.model.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_copy_is_the_same_model_and_answers_alike(copied, model, picture):
    read = mgap.load(str(copied))
    assert same_model(read, model)
    assert read.backbone.tokenize(read.backbone.render(PROMPT)) == model.backbone.tokenize(model.backbone.render(PROMPT))
    answers = [each.answer(picture, PROMPT, max_new_tokens=12).token_ids for each in (read, model)]
    assert answers[0] == answers[1]


def test_the_copy_has_what_vllm_looks_for(copied, family, checkpoints):
    names, settings = names_in(copied), json.loads((copied / "processor_config.json").read_text())
    if family == "llava":
        tower = [name for name in names if name.startswith("vision_tower.")]
        assert tower
        assert all(name.startswith("vision_tower.vision_model.") for name in tower)
        assert len(names) == len(names_in(checkpoints[family]))
        assert (copied / "chat_template.jinja").read_text().startswith("{{ bos_token }}")
    else:
        assert names == names_in(checkpoints[family])
        assert settings["video_processor"]["patch_size"] == settings["image_processor"]["patch_size"]


def test_a_copy_is_made_once_and_needs_no_copy_itself(copied, family, checkpoints):
    before = {path.name: path.stat().st_mtime_ns for path in copied.iterdir()}
    assert servable(str(checkpoints[family]), copied) == copied
    assert servable(str(copied)) == copied
    assert {path.name: path.stat().st_mtime_ns for path in copied.iterdir()} == before


def test_without_a_folder_the_copy_is_in_the_users_cache(family, tmp_path, monkeypatch):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "mgap"))
    name = f"pocket/{family}"
    found = servable(name)
    assert found.parent == tmp_path / "mgap" / "served"
    assert found == servable(name)
    assert not (EMBEDDED[name] / MARK).exists()


def test_other_weights_in_the_same_folder_are_another_copy(family, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "source"
    mgap.load(str(checkpoints[family])).backbone.model.save_pretrained(source)
    for name in ("tokenizer.json", "tokenizer_config.json", "processor_config.json", "chat_template.jinja"):
        (source / name).write_bytes((checkpoints[family] / name).read_bytes())
    first = servable(str(source), None)
    os.utime(source / "model.safetensors", ns=(1, 1))
    second = servable(str(source), None)
    assert first != second
    with pytest.raises(ModelError, match="holds something else than a copy"):
        servable(str(source), first)


def test_weights_in_several_files_are_renamed_in_all_of_them(checkpoints, tmp_path):
    source, heard = tmp_path / "source", []
    model = mgap.load(str(checkpoints["llava"]))
    model.backbone.model.save_pretrained(source, max_shard_size="300KB")
    model.backbone.processor.save_pretrained(source)
    files = len(list(source.glob("*.safetensors")))
    found = servable(str(source), tmp_path / "copy", progress=heard.append)
    index = json.loads((found / "model.safetensors.index.json").read_text())["weight_map"]
    assert files > 1
    assert heard == list(range(1, files + 1))
    assert set(index) == names_in(found)
    assert same_model(mgap.load(str(found)), model)


def test_many_who_ask_at_once_get_one_copy(family, checkpoints, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: servable(str(checkpoints[family]), tmp_path / "copy"), range(8)))
    assert set(found) == {tmp_path / "copy"}
    assert os.listdir(tmp_path) == ["copy"]


def test_a_copy_that_fails_leaves_nothing(family, checkpoints, tmp_path):
    source, place = tmp_path / "source", tmp_path / "place"
    source.mkdir()
    for path in checkpoints[family].iterdir():
        (source / path.name).symlink_to(path)
    (source / "zebra.json").symlink_to(tmp_path / "nowhere")  # copied after the others have been
    with pytest.raises(ModelError, match="no copy of it that vLLM could read can be made"):
        servable(str(source), place / "copy")
    assert list(place.iterdir()) == []
    (source / "zebra.json").unlink()
    assert servable(str(source), place / "copy") == place / "copy"


@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_broken_file_is_a_sentence(broken, checkpoints, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for path in checkpoints["llava"].iterdir():
        (source / path.name).write_bytes(b"{" if path.name == broken else path.read_bytes())
    with pytest.raises(ModelError, match="no copy of it"):
        servable(str(source), tmp_path / "copy")


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"a folder without config\.json; name the folder that save_pretrained wrote"):
        servable(str(tmp_path))


def test_a_folder_in_use_is_left_alone(family, checkpoints, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ModelError, match="name an empty folder"):
        servable(str(checkpoints[family]), tmp_path)
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_names_on_the_hub_stay_as_they_are():
    assert str(servable("llava-hf/llava-1.5-7b-hf")) == "llava-hf/llava-1.5-7b-hf"
    with pytest.raises(ModelError, match="no embedded model"):
        servable("pocket/lava")
