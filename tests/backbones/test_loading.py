"""Loading by folder, and what is said when that cannot work."""

import json
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_torchvision_available

import mgap
from mgap.backbones.llava import Llava
from mgap.backbones.qwen_vl import QwenVL
from mgap.errors import ImageError, ModelError, PromptError, SettingError

pytestmark = pytest.mark.both_families


def test_both_families_load_by_folder_with_and_without_torchvision(model, family):
    assert type(model.backbone) is {"llava": Llava, "qwen3-vl": QwenVL}[family]
    assert type(model.backbone.processor.image_processor).__name__.endswith("Pil") != is_torchvision_available()
    assert model.backbone.tokenizer.backend == "tokenizers"


def test_wrapping_a_model_in_hand_is_the_same_as_loading_it(model, picture):
    wrapped = mgap.wrap(model.backbone.model, model.backbone.processor)
    assert type(wrapped.backbone) is type(model.backbone)
    question = "What is this?"
    assert wrapped.answer(picture, question, max_new_tokens=4).text == model.answer(picture, question, max_new_tokens=4).text


def test_the_picture_matters(model, picture):
    one = model.backbone.encode([picture], ["What is this?"])
    other = model.backbone.encode([picture.transpose(0)], ["What is this?"])
    with torch.no_grad():
        assert not torch.allclose(model.backbone.model(**one).logits, model.backbone.model(**other).logits, atol=1e-3)


def test_the_layers_the_norm_and_the_image_tokens_are_found(model, picture):
    backbone = model.backbone
    assert len(backbone.layers) == 3
    assert backbone.final_norm.weight.shape == (64,)
    inputs = backbone.encode([picture, None], ["What is this?", "What is this?"])
    mask = backbone.image_mask(inputs)
    assert mask[0].any()
    assert not mask[1].any()
    assert all(key in inputs for key in backbone.pixel_keys)


def test_an_older_checkpoint_without_a_template_gets_its_family_s(family, checkpoints, tmp_path, picture, model):
    shutil.copytree(checkpoints[family], tmp_path / "old")
    (tmp_path / "old" / "chat_template.jinja").unlink()
    if family == "llava":  # and without the numbers that were added later
        config = json.loads((tmp_path / "old" / "processor_config.json").read_text())
        for key in ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"):
            config.pop(key)
        (tmp_path / "old" / "processor_config.json").write_text(json.dumps(config))
    old = mgap.load(str(tmp_path / "old"))
    assert torch.equal(*(m.backbone.encode([picture], ["What is this?"])["input_ids"] for m in (old, model)))


def test_a_checkpoint_laid_out_as_on_the_hub_gives_the_same_inputs(family, checkpoints, tmp_path, picture, model):
    """Hub repositories keep image, video and template settings in files of their own, and name the torchvision classes."""
    hub = tmp_path / "hub"
    shutil.copytree(checkpoints[family], hub)
    config = json.loads((hub / "processor_config.json").read_text())
    pictures = {k: v for k, v in config.pop("image_processor").items() if k != "image_processor_type"}
    named = {"llava": "CLIPImageProcessor", "qwen3-vl": "Qwen2VLImageProcessorFast"}[family]
    pictures |= {"image_processor_type": named, "processor_class": config["processor_class"]}
    (hub / "preprocessor_config.json").write_text(json.dumps(pictures))
    if family == "llava":
        (hub / "processor_config.json").write_text(json.dumps(config))
    else:
        (hub / "processor_config.json").unlink()
        videos = {**pictures, "video_processor_type": "Qwen3VLVideoProcessor"}
        (hub / "video_preprocessor_config.json").write_text(json.dumps(videos))
    template = (hub / "chat_template.jinja").read_text()
    (hub / "chat_template.jinja").unlink()
    (hub / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    loaded = mgap.load(str(hub)).backbone.encode([picture], ["What is this?"])
    expected = model.backbone.encode([picture], ["What is this?"])
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[key], expected[key]) for key in expected)


def test_a_generic_model_without_a_template_says_so(model, monkeypatch):
    from mgap.backbones.base import Backbone

    generic = Backbone(model.backbone.model, model.backbone.processor)
    monkeypatch.setattr(generic.processor, "chat_template", None)
    monkeypatch.setattr(generic.tokenizer, "chat_template", None)
    with pytest.raises(PromptError, match="no chat template"):
        generic.render("What is this?")


def test_a_model_without_its_processor_says_what_to_do(model):
    from mgap.backbones.base import Backbone

    with pytest.raises(ModelError, match=r"mgap\.wrap"):
        Backbone(model.backbone.model).encode([None], ["What is this?"])


def test_a_beginning_of_text_token_stands_once(checkpoints, picture):
    model = mgap.load(str(checkpoints["llava"]))
    bos = model.backbone.tokenizer.bos_token_id
    assert (model.backbone.encode([picture], ["What?"])["input_ids"] == bos).sum() == 1
    model.backbone.processor.chat_template = "<s>" + model.backbone.template
    assert (model.backbone.encode([picture], ["What?"])["input_ids"] == bos).sum() == 1


def test_images_and_prompts_must_be_as_many(model):
    with pytest.raises(PromptError, match="2 images but 1 prompts"):
        model.backbone.encode([None, None], ["What is this?"])


def test_an_image_that_is_missing_is_named(model):
    with pytest.raises(ImageError, match=r"nowhere\.png"):
        model.answer("nowhere.png", "What is this?")


def test_an_empty_prompt_is_refused(model, picture):
    with pytest.raises(PromptError, match="empty"):
        model.answer(picture, "   ")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"without config\.json"):
        mgap.load(str(tmp_path))


def test_a_text_model_is_refused_before_its_weights_are_read(tmp_path):
    config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(ModelError, match="reads no pictures"):
        mgap.load(str(tmp_path))


def test_a_checkpoint_with_its_own_code_is_refused_unless_asked_for(checkpoints, tmp_path):
    shutil.copytree(checkpoints["llava"], tmp_path / "own")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    config |= {"model_type": "homemade", "auto_map": {"AutoConfig": "homemade.Config"}}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    (tmp_path / "own" / "homemade.py").write_text("raise SystemExit('foreign code ran')")
    with pytest.raises(ModelError, match="trust_remote_code=True"):
        mgap.load(str(tmp_path / "own"))


def test_a_damaged_checkpoint_is_named(checkpoints, tmp_path):
    shutil.copytree(checkpoints["llava"], tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        mgap.load(str(tmp_path / "bad"))


def test_a_checkpoint_with_missing_weights_is_refused(checkpoints, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoints["llava"], tmp_path / "less")
    tensors = load_file(tmp_path / "less" / "model.safetensors")
    tensors.pop(next(name for name in tensors if name.endswith("q_proj.weight")))
    save_file(tensors, tmp_path / "less" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are missing, such as .*q_proj\.weight"):
        mgap.load(str(tmp_path / "less"))


def test_two_places_for_the_weights_are_refused(checkpoints):
    with pytest.raises(SettingError, match="device_map"):
        mgap.load(str(checkpoints["llava"]), device="cpu", device_map="auto")


def test_a_configuration_that_is_no_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        mgap.load(str(tmp_path))


def test_a_model_that_does_not_exist_is_named():
    with pytest.raises(ModelError, match="no model 'someone/nothing'"):
        mgap.load("someone/nothing")


def test_an_adapter_that_nothing_can_read_is_refused_not_left_out(checkpoints, tmp_path, monkeypatch):
    folder = shutil.copytree(checkpoints["llava"], tmp_path / "adapted")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder), "peft_type": "LORA"}))
    monkeypatch.setattr("mgap.backbones.loading.is_peft_available", lambda: False)
    with pytest.raises(ModelError, match=r"has an adapter.*pip install peft"):
        mgap.load(str(folder))


def damaged(checkpoints, tmp_path, name, **keys):
    """A copy of a checkpoint, with other values in one of its JSON files."""
    folder = shutil.copytree(checkpoints["llava"], tmp_path / "damaged")
    whole = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**whole, **keys}))
    return folder


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"model_type": []}', '{"model_type": "llava", "text_config": 3}']
)
def test_a_configuration_that_transformers_stumbles_over_is_named(tmp_path, text, run, picture_file):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        mgap.load(str(tmp_path))
    status, _, said = run("ask", picture_file, "What is this?", "--model", tmp_path)
    assert status == 2
    assert "config.json cannot be read" in said


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
def test_a_configuration_of_a_billion_blocks_is_refused_before_they_are_built(checkpoints, tmp_path, part):
    keys = json.loads((checkpoints["llava"] / "config.json").read_text())[part]
    folder = damaged(checkpoints, tmp_path, "config.json", **{part: {**keys, "num_hidden_layers": 10**9}})
    with pytest.raises(ModelError, match="num_hidden_layers=1000000000, and 10,000 is the most"):
        mgap.load(str(folder))


@pytest.mark.parametrize("end", ["x", 1.5, [2, None, "x"], True, 10**30])
def test_end_tokens_that_are_none_are_refused(checkpoints, tmp_path, end):
    with pytest.raises(ModelError, match=r"eos_token_id|cannot be loaded"):
        mgap.load(str(damaged(checkpoints, tmp_path, "generation_config.json", eos_token_id=end)))


@pytest.mark.parametrize("pad", [-1, 10**9])
def test_a_padding_token_outside_of_the_vocabulary_is_another_one(checkpoints, tmp_path, model, picture, pad):
    odd = mgap.load(
        str(damaged(checkpoints, tmp_path, "generation_config.json", pad_token_id=pad, eos_token_id=list(range(200))))
    )
    for static in (False, True):
        answers = list(
            odd.answers([picture] * 3, ["Is it?", "What?", "A dog?"], batch_size=3, max_new_tokens=8, static_cache=static)
        )
        assert all(0 <= token < 384 for answer in answers for token in answer.token_ids)


@pytest.mark.parametrize("suffix", ["lm_head.weight", "embed_tokens.weight"])
def test_a_head_with_fewer_rows_than_the_vocabulary_is_refused(checkpoints, tmp_path, suffix):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(checkpoints["llava"], tmp_path / "cut")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith(suffix))
    save_file({**tensors, name: tensors[name][:100].contiguous()}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="cannot be loaded"):
        mgap.load(str(folder))


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_weights_that_are_cut_short_are_refused(checkpoints, tmp_path, share):
    folder = shutil.copytree(checkpoints["llava"], tmp_path / "cut")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelError, match="cannot be loaded"):
        mgap.load(str(folder))


def test_files_that_contradict_each_other_are_one_error_when_the_model_runs(checkpoints, tmp_path, picture):
    folder = damaged(checkpoints, tmp_path, "processor_config.json", num_additional_image_tokens=7)
    with pytest.raises(ModelError, match=r"cannot answer .*its files may contradict each other"):
        mgap.load(str(folder)).answer(picture, "What is this?", max_new_tokens=2)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_where_it_uses_them(checkpoints, picture):
    model = mgap.load(str(checkpoints["llava"]))
    model.backbone.tokenizer.add_tokens(["<beyond>"])
    model.answer(picture, "What is this?", max_new_tokens=2)
    with pytest.raises(ModelError, match="gives token 384, and its embedding has 384 rows"):
        model.answer(picture, "What is <beyond>?", max_new_tokens=2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda keys: keys["model"].update(continuing_subword_prefix="##"),  # when it is loaded
        lambda keys: keys["post_processor"]["special_tokens"].clear(),  # when it is used
        lambda keys: keys["model"].update(vocab={}, merges=[], unk_token="gone"),  # no panic: a bare Exception
    ],
    ids=["a prefix", "a special token", "an unknown token"],
)
def test_a_tokenizer_that_makes_its_library_fail_is_a_sentence(checkpoints, tmp_path, picture, damage):
    folder = shutil.copytree(checkpoints["llava"], tmp_path / "damaged")
    keys = json.loads((folder / "tokenizer.json").read_text())
    damage(keys)
    (folder / "tokenizer.json").write_text(json.dumps(keys))
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be used"):
        mgap.load(str(folder)).answer(picture, "Is there a dog?", max_new_tokens=2)
