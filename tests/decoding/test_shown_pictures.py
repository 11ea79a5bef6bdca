"""Prompts that show no picture, one, or several: each as transformers itself is asked, or refused in a sentence."""

import pytest
import torch

import mgap
from mgap.backbones.prepared_pictures import Preparer
from mgap.decoding.step_by_step import step_by_step
from mgap.errors import ImageError, PromptError
from mgap.registry import METHODS
from tests.methods.builders import build

NEW = 6
QUESTIONS = ("What is in the picture?", "Who is it, and where?")


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture(scope="module")
def two(picture):
    return [picture, picture.rotate(90, expand=True)]


def asked_of_transformers(model, pictures, question):
    """The tokens of transformers' own processor and generate, without this package."""
    processor = model.backbone.processor
    content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": question}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, chat_template=model.backbone.template
    )
    inputs = processor(images=pictures or None, text=[text], return_tensors="pt")
    made = model.backbone.model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    return tuple(made[0, inputs["input_ids"].shape[1] :].tolist())


@pytest.mark.both_families
@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_answer_is_that_of_transformers(exact, two, count):
    shown = two[:count]
    expected = asked_of_transformers(exact, shown, QUESTIONS[0])
    assert exact.answer(shown or None, QUESTIONS[0], max_new_tokens=NEW).token_ids == expected
    assert exact.answer(shown or None, QUESTIONS[0], max_new_tokens=NEW, static_cache=True).token_ids == expected
    assert "".join(exact.stream(shown or None, QUESTIONS[0], max_new_tokens=NEW)).strip() == exact.answer(
        shown or None, QUESTIONS[0], max_new_tokens=NEW
    ).text  # fmt: skip


@pytest.mark.both_families
def test_rows_with_no_picture_one_and_two_share_a_batch(exact, two, picture_file):
    images, prompts = [None, two, str(picture_file), tuple(reversed(two))], [*QUESTIONS, *QUESTIONS]
    alone = [exact.answer(image, prompt, max_new_tokens=NEW) for image, prompt in zip(images, prompts, strict=True)]
    together = list(exact.answers(images, prompts, batch_size=4, max_new_tokens=NEW))
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    placeholder = exact.backbone.tokenizer.convert_ids_to_tokens(exact.backbone.image_token_id)
    assert [answer.prompt.count(placeholder) for answer in together] == [0, 2, 1, 2]


@pytest.mark.each_kind
@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_acts_on_every_prompt_or_refuses_what_it_cannot_act_on(exact, prior, two, picture, name):
    method = build(name, prior)
    rows = {"none": None, "several": two}
    plain = {kind: exact.answer(shown, QUESTIONS[1], max_new_tokens=NEW).token_ids for kind, shown in rows.items()}
    with exact.using(method):
        if method.needs_picture:
            for shown in rows.values():
                with pytest.raises(PromptError, match=f"leave {name} off"):
                    exact.answer(shown, QUESTIONS[1], max_new_tokens=NEW)
                with pytest.raises(PromptError, match=f"{name} needs one picture in every row"):
                    list(exact.answers([picture, shown], QUESTIONS, max_new_tokens=NEW))
            return
        for kind, shown in rows.items():
            alone = exact.answer(shown, QUESTIONS[1], max_new_tokens=NEW).token_ids
            assert alone != plain[kind], f"{kind}: it does not act"
            _, beside = exact.answers([picture, shown], QUESTIONS, max_new_tokens=NEW)
            assert beside.token_ids == alone


@pytest.mark.one_family
def test_vista_needs_a_picture_only_where_it_steers_by_one(exact, picture):
    unsteered = mgap.VISTA(lam=0.0, alpha=0.5)
    assert mgap.VISTA().needs_picture
    assert not unsteered.needs_picture
    with exact.using(unsteered):
        alone = exact.answer(None, QUESTIONS[1], max_new_tokens=NEW).token_ids
        assert list(exact.answers([picture, None], QUESTIONS, max_new_tokens=NEW))[1].token_ids == alone


@pytest.mark.one_family
def test_what_cannot_be_shown_is_refused(exact, two):
    with pytest.raises(PromptError, match="a row with several pictures has no prefill to share"):
        list(exact.answers([two], QUESTIONS[:1], prefill="shared"))
    for wrong in ([], [two[0], Preparer(exact.backbone)(two[0])]):
        with pytest.raises(ImageError, match="several pictures of one prompt"):
            exact.answer(wrong, QUESTIONS[0])
    with exact.using(mgap.VCD()), pytest.raises(PromptError, match="a prompt here shows 2"):
        next(exact.stream(two, QUESTIONS[0]))
    with pytest.raises(PromptError, match="a prompt here shows 2"):
        next(step_by_step(exact, mgap.VCD(), two, QUESTIONS[0]))
