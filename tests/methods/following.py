"""A method with a second branch against its reference, over several questions and in both ways of running."""

from dataclasses import replace

import pytest
import torch

from mgap.backbones.asked_rows import Asked, asking
from tests.reference import contrast as reference

QUESTIONS = ("Is there a dog in the image?", "What?", "How many people are there?")
NEW = 12
REFUSED = (  # of your own generate, by every method that keeps its branch in the cache and edits or reads attention
    {"cache_implementation": "static"},
    {"prompt_lookup_num_tokens": 2},
    {"use_cache": False},
    {"output_attentions": True, "return_dict_in_generate": True},
)


def follow(model, picture, method, branch_of, step):
    """The method's tokens are the reference's, over several questions and over NEW tokens of one at least."""
    lengths = []
    for question in QUESTIONS:
        main = model.backbone.encode([picture], [question])
        expected = reference.decode(model, main, branch_of(main, question), step, NEW)
        for mode in ("batched", "sequential"):
            with model.using(replace(method, branch_mode=mode)):
                tokens = model.answer(picture, question, max_new_tokens=NEW).token_ids
            assert tokens[: len(expected)] == expected, (question, mode)
        lengths.append(len(expected))
    assert max(lengths) == NEW, lengths


def check_beams(model, picture, method):
    """Every beam's score is the sum of the method's own log-probabilities along its tokens, each followed alone."""
    own, inputs = model.backbone.model, model.backbone.encode([picture], [QUESTIONS[0]])
    length = inputs["input_ids"].shape[1]
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    with model.using(method), asking(own, [Asked(picture, QUESTIONS[0])]):
        beams = own.generate(**inputs, **options, output_scores=True, num_beams=3, num_return_sequences=3, length_penalty=0.0)
        for tokens, score in zip(beams.sequences[:, length:].tolist(), beams.sequences_scores.tolist(), strict=True):

            def only(_row, sofar, tokens=tokens):
                return [tokens[len(sofar) - length]]

            alone = own.generate(**inputs, **options, output_logits=True, prefix_allowed_tokens_fn=only)
            assert alone.sequences[0, length:].tolist() == tokens
            steps = torch.stack(alone.logits)[:, 0].log_softmax(-1)[range(6), tokens]
            assert float(steps.sum()) == pytest.approx(score, abs=1e-3)


def encode_two(backbone, picture):
    """A prompt with two pictures of other shapes."""
    text = backbone.render("What?")
    image = backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id)
    text = text.replace(image, f"{image} and {image}") if "vision_start" not in text else text.replace(
        f"<|vision_start|>{image}<|vision_end|>", 2 * f"<|vision_start|>{image}<|vision_end|>"
    )  # fmt: skip
    pair = [picture, picture.rotate(90, expand=True)]
    return dict(backbone.processor(images=[pair], text=[text], return_tensors="pt"))


def rows_read(model, picture, *methods):
    """The tokens of every forward that makes the first word of an answer, [rows, T] each."""
    rows = []
    handle = model.backbone.model.base_model.register_forward_pre_hook(
        lambda _model, _args, kwargs: rows.append(kwargs["input_ids"]), with_kwargs=True
    )
    with model.using(*methods):
        model.answer(picture, QUESTIONS[0], max_new_tokens=1)
    handle.remove()
    return rows
