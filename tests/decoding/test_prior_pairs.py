"""Pairs along plain answers: each state beside its blind twin, nothing after an answer's end, and pictures told apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.decoding.attach import attached
from mgap.errors import BackboneMismatch, PromptError, SettingError
from mgap.priors.prior_map import PriorMap
from tests.reference.departure import last_state

PROMPTS = ["Is there a dog in the image?", "What?", "How many people are there in this picture?"]


@pytest.fixture(scope="module")
def shown():
    """Seven pictures, the last of them a second time, and a prompt for each."""
    pixels = np.random.default_rng(3).integers(0, 256, (7, 60, 80, 3), dtype=np.uint8)
    return [Image.fromarray(pixels[n % 7]) for n in (0, 1, 2, 3, 4, 5, 6, 6)], [PROMPTS[n % 3] for n in range(8)]


@pytest.fixture
def given_pairs(monkeypatch):
    """What the map is fitted on."""
    kept, original = [], PriorMap.from_states

    def keep(*args):
        kept.append(args)
        return original(*args)

    monkeypatch.setattr(PriorMap, "from_states", keep)
    return kept


@pytest.mark.parametrize("null_image", ["black_same_size", "no_image"])
def test_a_pair_is_one_prompt_with_its_picture_and_without(exact, prior, shown, given_pairs, null_image):
    found = mgap.fit_prior_map(exact, *shown, prior, null_image=null_image, batch_size=3)
    ((h, blind, _, rows),) = given_pairs
    assert rows == [0, 1, 2, 3, 4, 5, 6, 6]
    assert found.count == len(h) == len(blind) == 8
    for n, (picture, prompt) in enumerate(zip(*shown, strict=True)):
        inputs = exact.backbone.encode([picture], [prompt])
        if null_image == "no_image":
            nothing = exact.backbone.encode([None], [prompt])
        else:
            nothing = exact.backbone.encode([Image.new("RGB", picture.size)], [prompt])
        for states, read in ((h, inputs), (blind, nothing)):
            torch.testing.assert_close(states[n], torch.tensor(last_state(exact, read)), rtol=1e-4, atol=1e-4)


def test_pairs_go_along_the_plain_answer_and_stop_at_its_end(exact, prior, shown, given_pairs):
    pictures, prompts = shown
    end = exact.backbone.model.generation_config
    plain = [exact.answer(*row, max_new_tokens=6).token_ids for row in zip(pictures, prompts, strict=True)]
    before = end.eos_token_id
    end.eos_token_id = plain[0][2]  # some answers end early now
    try:
        answers = [exact.answer(*row, max_new_tokens=6).token_ids for row in zip(pictures, prompts, strict=True)]
        mgap.fit_prior_map(exact, pictures, prompts, prior, max_new_tokens=6)
    finally:
        end.eos_token_id = before
    lengths = [len(answer) for answer in answers]
    assert min(lengths) <= 3 < max(lengths)
    ((h, blind, _, rows),) = given_pairs
    numbers = (0, 1, 2, 3, 4, 5, 6, 6)
    assert rows == [number for number, length in zip(numbers, lengths, strict=True) for _ in range(length)]
    assert len(h) == len(blind) == sum(lengths)
    for state, image in ((h, pictures[1]), (blind, Image.new("RGB", pictures[1].size))):  # the second answer's second token
        inputs = exact.backbone.encode([image], [prompts[1]])
        said = torch.tensor([answers[1][:1]], device=exact.backbone.device)
        along = {"input_ids": said, "attention_mask": torch.ones_like(said), "mm_token_type_ids": torch.zeros_like(said)}
        grown = {key: torch.cat([value, along[key]], 1) if key in along else value for key, value in inputs.items()}
        expected = torch.tensor(last_state(exact, grown))
        torch.testing.assert_close(state[lengths[0] + 1], expected, rtol=1e-4, atol=1e-4)


def test_the_batch_does_not_matter_and_progress_is_told(exact, prior, shown, given_pairs):
    seen = []
    mgap.fit_prior_map(exact, *shown, prior, max_new_tokens=2, batch_size=1)
    mgap.fit_prior_map(exact, *map(iter, shown), prior, max_new_tokens=2, batch_size=5, progress=seen.append)
    (alone, together) = given_pairs
    assert alone[3] == together[3]
    for one, other in zip(alone[:2], together[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert seen == [5, 8]


def test_what_it_came_from_is_kept_and_a_method_can_use_it(exact, prior, shown, picture, tmp_path):
    found = mgap.fit_prior_map(exact, *shown, prior)
    assert found.identity == exact.backbone.identity
    assert (found.origin["prompts"], found.origin["pictures"], found.origin["null_image"]) == (8, 7, "black_same_size")
    found.save(tmp_path)
    plain = exact.answer(picture, PROMPTS[0], max_new_tokens=6).token_ids
    with exact.using(mgap.PredictedPrior(tmp_path, rho=20.0)):
        assert exact.answer(picture, PROMPTS[0], max_new_tokens=6).token_ids != plain


def test_files_are_told_apart_by_what_they_show(exact, prior, shown, given_pairs, tmp_path):
    names = [tmp_path / f"{n}.png" for n in range(8)]
    for name, picture in zip(names, shown[0], strict=True):
        picture.save(name)
    mgap.fit_prior_map(exact, names, shown[1], prior)
    assert given_pairs[0][3] == [0, 1, 2, 3, 4, 5, 6, 6]


def test_what_cannot_be_fitted_is_refused_and_nothing_stays_behind(exact, prior, shown):
    pictures, prompts = shown
    other = replace(prior, identity=replace(prior.identity, sample=tuple(-x for x in prior.identity.sample)))
    for args, options, error, said in (
        ((pictures[:3], prompts[:3], prior), {}, PromptError, "pairs of 3 pictures"),
        (([], [], prior), {}, PromptError, "pairs of 0 pictures"),
        ((pictures, prompts[:5], prior), {}, PromptError, "more images than prompts"),
        (([None, *pictures[1:]], prompts, prior), {}, PromptError, "has no picture"),
        ((pictures, prompts, other), {}, BackboneMismatch, "weights differ"),
        ((pictures, prompts, prior), {"batch_size": 0}, SettingError, "batch_size=0"),
        ((pictures, prompts, prior), {"max_new_tokens": 0}, SettingError, "max_new_tokens=0"),
        ((pictures, prompts, prior), {"null_image": "white"}, SettingError, "null_image='white'"),
    ):
        with pytest.raises(error, match=said):
            mgap.fit_prior_map(exact, *args, **options)
        assert not attached(exact.backbone.model)
    with exact.using(mgap.MGAP(prior)), pytest.raises(SettingError, match="mgap is attached"):
        mgap.fit_prior_map(exact, pictures, prompts, prior)
