"""Prompts whose picture is taken out: the tokens that the chat template gives without a picture, or refused."""

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import mgap
from mgap.backbones.base import Backbone
from mgap.backbones.text_only_prompts import TextOnlyPrompts
from mgap.backbones.token_rows import split_rows
from mgap.errors import ModelError, PromptError
from tests.backbones.families import FAMILIES

PROMPTS = ["Is there a dog in the image?", "What?", "\nTwo lines\nof text.", " spaced  out ", "Schöne Grüße, 你好!"]


def blind_rows(backbone, inputs):
    return split_rows(mgap.Blind(null_image="no_image").branch(backbone, inputs))


def test_a_blind_branch_reads_the_tokens_that_a_prior_is_fitted_on(model, picture):
    backbone = model.backbone
    fitted = backbone.blind(PROMPTS, "no_image")
    branch = mgap.Blind(null_image="no_image").branch(backbone, backbone.encode([picture] * len(PROMPTS), PROMPTS))
    assert set(branch) == set(fitted)
    for key, value in fitted.items():
        assert branch[key].equal(value), key


@pytest.mark.parametrize("name", ["blind", "prompt-prior"])
def test_inside_a_generate_of_ones_own_the_branch_reads_them_too(model, prior, picture, name):
    method = mgap.Blind(null_image="no_image") if name == "blind" else mgap.PromptPrior(prior=prior, null_image="no_image")
    backbone, rows = model.backbone, []
    handle = backbone.model.base_model.register_forward_pre_hook(
        lambda _model, _args, kwargs: rows.append(split_rows(kwargs)), with_kwargs=True
    )
    inputs = model.backbone.encode([picture], PROMPTS[:1])
    with mgap.attach(model, method):
        backbone.model.generate(**inputs, max_new_tokens=1)
    handle.remove()
    assert rows[-1] == [*split_rows(inputs), *split_rows(backbone.blind(PROMPTS[:1], "no_image"))]


@pytest.mark.parametrize("other", FAMILIES)
def test_other_families_read_them_or_are_refused_by_name(other, tmp_path, picture):
    FAMILIES[other](tmp_path)
    backbone = mgap.load(str(tmp_path)).backbone
    if other in ("idefics3", "smolvlm"):
        with pytest.raises(ModelError, match=r"in pieces.*black_same_size"):
            TextOnlyPrompts(backbone)
        return
    inputs = backbone.encode([picture] * len(PROMPTS), PROMPTS)
    assert blind_rows(backbone, inputs) == split_rows(backbone.blind(PROMPTS, "no_image"))


def test_a_tokenizer_in_the_style_of_llama_reads_them(checkpoints, picture):
    backbone = mgap.load(str(checkpoints["llava"])).backbone
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False)
    tokenizer.train_from_iterator([*PROMPTS, "USER: ASSISTANT: "] * 5, trainer)
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    own = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    backbone.processor.tokenizer = own
    backbone.processor.image_token_id = backbone.config.image_token_id = own.convert_tokens_to_ids("<image>")
    if hasattr(backbone.config, "image_token_index"):
        backbone.config.image_token_index = backbone.config.image_token_id
    inputs = backbone.encode([picture] * len(PROMPTS), PROMPTS)
    assert blind_rows(backbone, inputs) == split_rows(backbone.blind(PROMPTS, "no_image"))


def test_a_prompt_that_is_not_as_the_template_writes_it_is_refused(checkpoints, picture):
    backbone = mgap.load(str(checkpoints["llava"])).backbone
    inputs = backbone.encode_rendered([picture], ["USER: <image>Is there a dog? ASSISTANT:"])
    with pytest.raises(PromptError, match=r"<picture>\\n.*black_same_size"):
        mgap.Blind(null_image="no_image").branch(backbone, inputs)


def test_tokens_that_are_not_those_of_their_text_are_refused(model, picture):
    backbone = model.backbone
    inputs = backbone.encode([picture], PROMPTS[:1])
    (row,) = split_rows(inputs)
    names, special = backbone.tokenizer.convert_ids_to_tokens(row), backbone.tokenizer.all_special_ids
    word = max(n for n, token in enumerate(row) if len(names[n]) > 1 and token not in special)
    row[word : word + 1] = backbone.tokenizer.convert_tokens_to_ids(list(names[word]))  # letter by letter
    inputs = {**inputs, "input_ids": torch.tensor([row]), "attention_mask": torch.ones(1, len(row), dtype=torch.long)}
    with pytest.raises(PromptError, match=r"not those of its text.*black_same_size"):
        mgap.Blind(null_image="no_image").branch(backbone, inputs)


def test_a_template_that_speaks_otherwise_without_a_picture_is_refused(checkpoints):
    backbone = mgap.load(str(checkpoints["llava"])).backbone
    plain = backbone.template
    backbone.processor.chat_template = "{% if messages[0]['content'][0]['type'] == 'text' %}Text only. {% endif %}" + plain
    with pytest.raises(ModelError, match="another text without a picture"):
        TextOnlyPrompts(backbone)


def test_a_model_without_its_processor_is_refused_on_attaching(model):
    with pytest.raises(ModelError, match="without its processor"):
        mgap.attach(Backbone.of(model.backbone.model).model, mgap.Blind(null_image="no_image"))
