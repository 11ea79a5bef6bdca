"""InstructBLIP: the answers of transformers' own class, from a forward and a generate that methods can follow."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Blip2Config, BlipConfig, InstructBlipForConditionalGeneration, Kosmos2Config, T5Config

import mgap
from mgap.backbones.shared_prefill import unshareable
from mgap.backbones.text_only_prompts import TextOnlyPrompts
from mgap.errors import ImageError, ModelError, PromptError
from tests.backbones import families
from tests.reference import contrast

QUESTIONS = ["Is there a dog?", "Describe this picture in a few words.", "What?"]


def noise(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (48, 64, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("instructblip")
    families.instructblip(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return mgap.load(str(folder))


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=str)
def test_it_answers_as_transformers_class_and_processor_do(model, folder, options):
    theirs = InstructBlipForConditionalGeneration.from_pretrained(folder)
    _, processor = families.instructblip_parts()
    for seed, question in enumerate(QUESTIONS):
        inputs = processor(images=noise(seed), text=question, return_tensors="pt")
        expected = theirs.generate(**inputs, max_new_tokens=6, do_sample=False, **options)[0, inputs["input_ids"].shape[1] :]
        assert list(model.answer(noise(seed), question, max_new_tokens=6, **options).token_ids) == expected.tolist()


def test_its_weights_and_its_name_are_those_of_the_checkpoint(model, folder, tmp_path):
    model.backbone.model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["InstructBlipForConditionalGeneration"]
    theirs = InstructBlipForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), model.backbone.model.parameters(), strict=True))


def test_the_q_former_reads_each_question_whatever_stands_beside_it(model):
    """Its positions are absolute, so its rows are padded on the right."""
    together = model.backbone.encode([noise(0), noise(0), noise(0)], QUESTIONS)
    images = model.backbone.encode_pictures(together).pooler_output
    for row, question in enumerate(QUESTIONS):
        (alone,) = model.backbone.encode_pictures(model.backbone.encode([noise(0)], [question])).pooler_output
        torch.testing.assert_close(images[row], alone)
    assert not torch.allclose(images[0], images[1], atol=1e-2)  # one picture, two questions


def test_a_batch_mixes_rows_with_and_without_pictures(model):
    pictures = [noise(0), None, noise(1)]
    alone = [model.answer(*row, max_new_tokens=6).token_ids for row in zip(pictures, QUESTIONS, strict=True)]
    assert [answer.token_ids for answer in model.answers(pictures, QUESTIONS, max_new_tokens=6)] == alone
    text = model.backbone.tokenizer(QUESTIONS[1], return_tensors="pt")
    expected = model.backbone.model.language_model.generate(**text, max_new_tokens=6, do_sample=False)
    assert list(alone[1]) == expected[0, text["input_ids"].shape[1] :].tolist()


def test_a_prior_is_fitted_with_and_without_pictures_and_mgap_acts(model):
    prompts = list(mgap.default_prompts())[:12]
    plain = model.answer(noise(0), QUESTIONS[1], max_new_tokens=6).token_ids
    for null in ("black336", "no_image"):
        prior = mgap.Subspace.fit(model, prompts, rank=3, null_image=null)
        with pytest.warns(UserWarning, match="alpha"):
            method = mgap.MGAP(prior, alpha=8.0)
        with model.using(method):
            assert model.answer(noise(0), QUESTIONS[1], max_new_tokens=6).token_ids != plain
    assert model.answer(noise(0), QUESTIONS[1], max_new_tokens=6).token_ids == plain


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_a_noised_picture_is_read_with_the_same_question(model, mode):
    method = mgap.VCD(alpha=4.0, noise_step=999, branch_mode=mode)
    rows = [(noise(seed), question) for seed, question in enumerate(QUESTIONS)]
    for image, question in rows:
        main = model.backbone.encode([image], [question])
        expected = contrast.decode(model, main, method.branch(model.backbone, main), contrast.contrastive(4.0, 0.1), 5)
        with model.using(method):
            assert list(model.answer(image, question, max_new_tokens=5).token_ids) == list(expected)
    with model.using(method):
        alone = [model.answer(*row, max_new_tokens=5).token_ids for row in rows]
        assert [a.token_ids for a in model.answers(*zip(*rows, strict=True), max_new_tokens=5)] == alone
        assert model.answer(*rows[0], max_new_tokens=5, num_beams=2).token_ids


def test_a_branch_without_the_picture_reads_the_question_alone(model):
    assert TextOnlyPrompts(model.backbone)
    inputs = model.backbone.encode([noise(0), noise(1)], QUESTIONS[:2])
    branch = mgap.Blind(null_image="no_image").branch(model.backbone, inputs)
    assert torch.equal(branch["input_ids"], model.backbone.blind(QUESTIONS[:2], "no_image")["input_ids"])
    with model.using(mgap.Blind(rho=2.0, null_image="no_image")):
        assert model.answer(noise(0), QUESTIONS[0], max_new_tokens=5).token_ids


def test_streams_samples_and_static_caches_work(model):
    plain = model.answer(noise(0), QUESTIONS[0], max_new_tokens=5)
    assert "".join(model.stream(noise(0), QUESTIONS[0], max_new_tokens=5)).strip() == plain.text
    assert model.answer(noise(0), QUESTIONS[0], max_new_tokens=5, static_cache=True).token_ids == plain.token_ids
    assert model.answer(noise(0), QUESTIONS[0], max_new_tokens=5, sample=True).token_ids


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (mgap.ICD(), "a branch with another text beside a picture is not supported"),
        (mgap.FastED(), "which instructblip is not known to have"),
        (mgap.Given(evidence=lambda asked: [mgap.Evidence((noise(7),))]), "reads a picture with its prompt in mind"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_would_need_another_reading_is_refused_by_name(model, method, said):
    with pytest.raises((PromptError, ModelError), match=said), model.using(method):
        model.answer(noise(0), QUESTIONS[0], max_new_tokens=2)


def test_what_else_it_cannot_do_is_refused_by_name(model):
    with pytest.raises(ImageError, match="one picture a prompt"):
        model.answer([noise(0), noise(1)], QUESTIONS[0])
    with pytest.raises(PromptError, match="for the Q-Former"):
        model.answer(noise(0), "dog " * 100)
    with pytest.raises(PromptError, match="leave <image> out"):
        model.answer(noise(0), "What is <image> here?")
    assert "instructblip has not been checked" in unshareable(model.backbone)


def test_a_stated_template_has_no_place_for_the_picture(folder):
    stated = mgap.load(str(folder), template="Question: {question} Short answer:")
    assert stated.backbone.render("What?") == "Question: What? Short answer:"
    with pytest.raises(mgap.MgapError, match=r"has \{image\}: leave it out, which stands before every prompt"):
        mgap.load(str(folder), template="{image} {question}")


def test_transformers_own_object_is_refused_with_what_to_do(folder):
    theirs = InstructBlipForConditionalGeneration.from_pretrained(folder)
    _, processor = families.instructblip_parts()
    with pytest.raises(ModelError, match=r"load it with mgap\.load"):
        mgap.wrap(theirs, processor)


def test_an_older_transformers_is_refused_before_weights_are_read(folder, monkeypatch):
    monkeypatch.setattr("mgap.backbones.instructblip.OLDEST", "99.0")
    with pytest.raises(ModelError, match=r"^InstructBLIP needs transformers 99\.0 or newer here, and this is 5\."):
        mgap.load(str(folder))


def test_an_encoder_decoder_is_refused_before_its_weights_are_read(folder, tmp_path, run):
    keys = json.loads((folder / "config.json").read_text())
    keys["text_config"] = T5Config(d_model=64, d_ff=64, num_layers=1, num_heads=2, vocab_size=384).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(ModelError, match="its language model is an encoder, which reads the prompt, and a decoder"):
        mgap.load(str(tmp_path))
    status, _, err = run("doctor", tmp_path)
    assert status == 2
    assert "choose a checkpoint with such a language model" in err


@pytest.mark.parametrize("config", [Blip2Config, Kosmos2Config, BlipConfig], ids=lambda config: config.model_type)
def test_families_that_generate_around_their_forward_are_refused_by_name(tmp_path, config):
    """A second branch would never be run there, and nothing would say so."""
    config().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rf"{config.model_type} models generate around their own forward.*as instructblip has"):
        mgap.load(str(tmp_path))
