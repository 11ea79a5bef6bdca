"""ICD: the branch reads the prompt that one would have written by hand, and the rest is what the equations say."""

from dataclasses import replace

import pytest
import torch

import mgap
from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import tokenize_text
from mgap.errors import ModelError, PromptError, SettingError
from mgap.methods.icd import INSTRUCTIONS
from mgap.registry import METHODS
from tests.methods.following import NEW, QUESTIONS, follow
from tests.reference import contrast as reference
from tests.reference import instructions

CONFUSED = INSTRUCTIONS["confused"]
WITH_SYSTEM = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'] | upper + ': ' }}{% endif %}"
    "{% for part in message['content'] %}{{ '<image>\\n' if part['type'] == 'image' else part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32; the template has a system role in both families."""
    model = mgap.load(str(checkpoints[family]), dtype=torch.float32)
    if family == "llava":
        model.backbone.processor.chat_template = WITH_SYSTEM
    return model


@pytest.mark.parametrize("placement", ["prefix_after_image", "prefix_before_image", "system"])
def test_it_is_what_its_equation_says(exact, picture, placement):
    def branch(_main, question):
        return instructions.disturbed(exact.backbone, picture, question, CONFUSED, placement)

    follow(exact, picture, mgap.ICD(alpha=2.0, placement=placement), branch, reference.contrastive(2.0, 0.1))


def test_the_subtracting_form_is_what_the_paper_writes(exact, picture):
    def branch(_main, question):
        return instructions.disturbed(exact.backbone, picture, question, INSTRUCTIONS["avoid"], "prefix_after_image")

    method = mgap.ICD(alpha=0.8, beta=0.0, form="subtract", instruction="avoid")
    follow(exact, picture, method, branch, instructions.subtracting(0.8, 0.0))


@pytest.mark.parametrize(("alpha", "beta", "step"), [(1.0, 0.1, 500), (3.0, 0.0, 999)])
def test_with_vcd_it_is_the_sum_of_both(exact, picture, alpha, beta, step):
    vcd = mgap.VCD(noise_step=step)

    def branches(main, question):
        told = instructions.disturbed(exact.backbone, picture, question, CONFUSED, "prefix_after_image")
        parts = [main["pixel_values"][rows] for rows in exact.backbone.pictures(main)]
        noised = torch.cat([reference.noised(part, vcd.noise(exact.backbone, part), step) for part in parts])
        return [told, {**main, "pixel_values": noised}]

    method = mgap.ICD(alpha=alpha, beta=beta, with_vcd=True, noise_step=step)
    follow(exact, picture, method, branches, instructions.with_noise(alpha, beta))


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("beams", [1, 2])
def test_with_vcd_a_row_of_a_batch_is_what_it_is_alone(exact, picture, mode, beams):
    pictures = [picture, picture.rotate(90, expand=True), picture.rotate(180)]
    method, options = mgap.ICD(alpha=3.0, with_vcd=True, branch_mode=mode), {"num_beams": beams, "max_new_tokens": NEW}
    with exact.using(method):
        alone = [exact.answer(p, q, **options).token_ids for p, q in zip(pictures, QUESTIONS[:3], strict=True)]
        together = [a.token_ids for a in exact.answers(pictures, QUESTIONS[:3], batch_size=3, **options)]
    assert together == alone


def test_with_vcd_the_trace_has_both_distances_and_each_setting_matters(exact, picture):
    def traced(**settings):
        with exact.using(mgap.ICD(**settings)):
            return exact.answer(picture, QUESTIONS[0], max_new_tokens=1, trace=True).trace[0].values

    with exact.using(mgap.VCD(noise_step=999, seed=7)):
        seen = exact.answer(picture, QUESTIONS[0], max_new_tokens=1, trace=True).trace[0].values
    values = traced(with_vcd=True, noise_step=999, seed=7)
    assert values["distance"] == pytest.approx(traced()["distance"], abs=1e-5)
    assert values["distance_vcd"] == pytest.approx(seen["distance"], abs=1e-5)
    others = [traced(with_vcd=True), traced(with_vcd=True, noise_step=999)]
    assert len({round(each["distance_vcd"], 5) for each in (values, *others)}) == 3


@pytest.mark.parametrize("placement", ["prefix_after_image", "prefix_before_image", "system"])
def test_rows_of_any_length_read_what_they_would_read_alone(exact, picture, placement):
    pictures = [picture, picture.rotate(90, expand=True), picture]
    main = exact.backbone.encode(pictures, QUESTIONS[:3])
    branch = mgap.ICD(placement=placement).branch(exact.backbone, main)
    assert branch["pixel_values"] is main["pixel_values"]
    for row in range(3):
        alone = instructions.disturbed(exact.backbone, pictures[row], QUESTIONS[row], CONFUSED, placement)
        length = alone["input_ids"].shape[1]
        for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
            if key in main:
                assert torch.equal(branch[key][row, -length:], alone[key][0])
        assert not branch["attention_mask"][row, :-length].any()


@pytest.mark.parametrize("settings", [{}, {"form": "subtract"}, {"with_vcd": True}], ids=str)
def test_zero_strength_says_what_the_model_says(exact, picture, settings):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.ICD(alpha=0.0, **settings)):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("with_vcd", [False, True])
def test_the_vision_tower_runs_once_and_once_for_noise(exact, picture, mode, with_vcd):
    calls = []
    handle = exact.backbone.vision.register_forward_hook(lambda *_: calls.append(1))
    with exact.using(mgap.ICD(branch_mode=mode, with_vcd=with_vcd)):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
    handle.remove()
    assert len(calls) == 1 + with_vcd


@pytest.mark.parametrize("name", ["icd", "m3id"])
@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_two_beams_keep_pictures_of_two_shapes_apart(exact, picture, mode, name):
    """With a branch that sees the pictures, and one that does not: the beams repeat them in their places."""
    pictures = [picture, picture.rotate(90, expand=True)]
    options = {"num_beams": 2, "max_new_tokens": NEW}
    with exact.using(replace(METHODS.get(name)(), branch_mode=mode)):
        alone = [exact.answer(p, q, **options).token_ids for p, q in zip(pictures, QUESTIONS[:2], strict=True)]
        together = [a.token_ids for a in exact.answers(pictures, QUESTIONS[:2], batch_size=2, **options)]
    assert together == alone


@pytest.mark.parametrize("placement", ["prefix_after_image", "prefix_before_image"])
def test_a_prompt_that_no_tokenizer_would_write_keeps_its_tokens(exact, picture, placement):
    """Spelled byte by byte, decoding and encoding do not give the tokens back: the instruction goes between them."""
    backbone, tokenizer = exact.backbone, exact.backbone.tokenizer
    main = backbone.encode([picture], ["Is there a dog?"])
    tokens = tokenizer.convert_ids_to_tokens(main["input_ids"][0].tolist())
    spelled = [letter for token in tokens for letter in ([token] if token in tokenizer.all_special_tokens else token)]
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(spelled)])
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    (branch,) = mgap.ICD(placement=placement).branch(backbone, {**main, **rows})["input_ids"].tolist()
    inserted = tokenize_text(tokenizer, f"{CONFUSED} ")
    at = next(n for n in range(len(branch)) if branch[n : n + len(inserted)] == inserted)
    assert branch[:at] + branch[at + len(inserted) :] == ids[0].tolist()
    by_hand = instructions.disturbed(backbone, picture, "Is there a dog?", CONFUSED, placement)["input_ids"][0]
    assert tokenizer.decode(branch) == tokenizer.decode(by_hand)


def test_a_template_without_a_system_role_is_refused_on_attaching(checkpoints, picture):
    plain = mgap.load(str(checkpoints["llava"]))
    with pytest.raises(PromptError, match="system role"), plain.using(mgap.ICD(placement="system")):
        pass
    strict = mgap.load(str(checkpoints["llava"]))
    strict.backbone.processor.chat_template = (
        "{% if messages[0]['role'] != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}USER: <image>\n?"
    )
    with pytest.raises(PromptError, match="system role"), strict.using(mgap.ICD(placement="system")):
        pass
    assert plain.answer(picture, "What?", max_new_tokens=1).token_ids


def test_a_template_that_puts_the_system_text_behind_the_picture_is_refused(checkpoints):
    behind = mgap.load(str(checkpoints["llava"]))
    behind.backbone.processor.chat_template = (
        "<image>{% for message in messages if message['role'] == 'system' %}{{ message['content'][0]['text'] }}{% endfor %}?"
    )
    with pytest.raises(PromptError, match="before the picture"), behind.using(mgap.ICD(placement="system")):
        pass


def test_a_prompt_of_another_template_has_no_system_text_to_replace(exact, picture):
    image = exact.backbone.render("?").partition("?")[0]
    inputs = exact.backbone.encode_rendered([picture], [f"So: {image}What?"])
    with exact.using(mgap.ICD(placement="system")), pytest.raises(PromptError, match="prefix_after_image"):
        exact.backbone.model.generate(**inputs, max_new_tokens=2)


def test_what_cannot_be_built_is_refused(exact, picture):
    with exact.using(mgap.ICD()):
        with pytest.raises(PromptError, match="leave icd off"):
            exact.answer(None, "What?", max_new_tokens=2)
        with pytest.raises(PromptError, match="one picture a row"):
            list(exact.answers([picture, None], ["What?", "Who?"], batch_size=2, max_new_tokens=2))
    with exact.using(mgap.ICD(instruction="so very long " * 400)), pytest.raises(PromptError, match="1,024 positions"):
        exact.answer(picture, "What?", max_new_tokens=2)
    with pytest.raises(ModelError, match="processor"), mgap.attach(exact.backbone.model, mgap.ICD()):
        pass
    assert not Backbone.of(exact).model._forward_hooks


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"beta": 2}, "beta"), ({"placement": "suffix"}, "placement"), ({"form": "add"}, "form"),
     ({"instruction": " "}, "instruction"), ({"instruction": 3}, "instruction"), ({"with_vcd": "yes"}, "with_vcd"),
     ({"noise_step": 500}, "with_vcd=true"), ({"seed": 0}, "with_vcd=true"),
     ({"with_vcd": True, "noise_step": 1000}, "noise_step"), ({"with_vcd": True, "noise_step": "high"}, "noise_step"),
     ({"with_vcd": True, "form": "subtract"}, "extrapolate only")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.ICD(**settings)
