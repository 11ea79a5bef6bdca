"""min-p sampling: what it keeps, that it is the plausibility cut of a contrast, and that it is off unless it is asked for."""

import pytest
import torch

import mgap
from mgap.decoding.generate import generation_config
from mgap.types import Decoding

QUESTIONS = ("Is there a dog in the image?", "What?", "Describe it.")
NEW = 12


def sampled(model, picture, **options):
    """What is drawn at several seeds and questions."""
    return [
        model.answer(picture, question, max_new_tokens=NEW, sample=True, seed=seed, **options).token_ids
        for question in QUESTIONS
        for seed in range(3)
    ]


@pytest.mark.parametrize(("min_p", "temperature"), [(0.2, 1.0), (0.7, 1.0), (0.7, 0.5)])
def test_it_keeps_the_tokens_of_at_least_its_share_of_the_best_probability_after_the_temperature(
    exact, picture, min_p, temperature
):
    backbone = exact.backbone
    config = generation_config(backbone, Decoding(max_new_tokens=NEW, sample=True, min_p=min_p, temperature=temperature))
    config.output_scores = config.output_logits = True
    torch.manual_seed(0)
    made = backbone.model.generate(**backbone.encode([picture], QUESTIONS[:1]), generation_config=config)
    for logits, scores in zip(made.logits, made.scores, strict=True):
        p = (logits / temperature).softmax(-1)
        assert torch.equal(scores.isfinite(), p >= min_p * p.amax())
    kept = [int(scores.isfinite().sum()) for scores in made.scores]
    assert 0 < min(kept) < max(kept) < logits.shape[-1]


@pytest.mark.parametrize("options", [{}, {"static_cache": True}], ids=str)
def test_it_draws_what_a_contrast_of_no_strength_draws_with_its_cut(exact, picture, options):
    """Beta cuts logits before the temperature: at temperature 1 that is the same. The branch costs a second forward."""
    cut = sampled(exact, picture, min_p=0.2, **options)
    with exact.using(mgap.VCD(alpha=0.0, beta=0.2)):
        assert sampled(exact, picture, **options) == cut
    assert cut != sampled(exact, picture)


def test_zero_is_plain_sampling_whatever_the_checkpoint_suggests(exact, picture, monkeypatch):
    plain = sampled(exact, picture)
    monkeypatch.setattr(exact.backbone.model.generation_config, "min_p", 0.9)
    assert sampled(exact, picture, min_p=0.0) == plain


def test_close_to_one_it_is_greedy(exact, picture):
    greedy = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS for _ in range(3)]
    assert sampled(exact, picture, min_p=0.9999) == greedy != sampled(exact, picture)
