"""Reference states: forced texts give the states that decoding has, row by row; aligned ones are means of right neighbours."""

import pytest
import torch

from mgap.backbones.head_states import catch_states
from mgap.backbones.token_rows import tokenize_text
from mgap.decoding.generate import generate
from mgap.diagnosis import reference_states
from mgap.diagnosis.reference_states import aligned_states, closest_text, forced_states, right_states, shared_prefix_length
from mgap.errors import PromptError, SettingError
from mgap.priors.collect_states import last_states
from mgap.types import Decoding

PROMPTS = ["Describe this image.", "Is there a dog in the image? Say more about it."]


@pytest.fixture(scope="module")
def inputs(model, picture):
    return model.backbone.encode([picture] * 2, PROMPTS)


def test_a_forced_text_has_the_states_that_decoding_it_has(model, inputs):
    with catch_states(model.backbone) as caught:  # a random model may name the picture's own token
        made = generate(model.backbone, inputs, Decoding(max_new_tokens=5), suppress_tokens=[model.backbone.image_token_id])
    decoded = torch.stack(caught, dim=1)  # [B, T, d]
    for row, states in enumerate(forced_states(model.backbone, inputs, made.tokens.tolist())):
        torch.testing.assert_close(states, decoded[row, : len(states)].float(), rtol=1e-4, atol=1e-4)


def test_texts_of_other_lengths_in_the_batch_do_not_matter(model, inputs, picture):
    tokenizer = model.backbone.tokenizer
    texts = [tokenize_text(tokenizer, text) for text in ("A dog.", "There is a street with two cars in it.")]
    assert len(texts[0]) < len(texts[1])
    together = forced_states(model.backbone, inputs, texts)
    assert [len(states) for states in together] == [len(text) for text in texts]
    for text, prompt, states in zip(texts, PROMPTS, together, strict=True):
        (alone,) = forced_states(model.backbone, model.backbone.encode([picture], [prompt]), [text])
        torch.testing.assert_close(states, alone, rtol=1e-4, atol=1e-4)


def test_before_the_first_token_and_while_texts_agree_the_forced_state_is_the_plain_one(model, inputs):
    plain = forced_states(model.backbone, inputs, [[8, 9, 10, 11]] * 2)
    true = forced_states(model.backbone, inputs, [[8, 9, 12, 13]] * 2)
    for mine, theirs in zip(plain, true, strict=True):
        torch.testing.assert_close(mine[:3], theirs[:3], rtol=0, atol=1e-5)  # the third has read two equal tokens
        assert (mine[3] - theirs[3]).norm() > 1e-3
    first = last_states(model.backbone, inputs)
    for row in range(2):
        torch.testing.assert_close(plain[row][0], first[row], rtol=1e-4, atol=1e-4)


def test_a_text_for_every_row_is_needed(model, inputs):
    for texts in ([[1, 2]], [[1, 2], []]):
        with pytest.raises(PromptError, match="one a row"):
            forced_states(model.backbone, inputs, texts)
    with pytest.raises(PromptError, match="stands for a picture"):
        forced_states(model.backbone, inputs, [[1, model.backbone.image_token_id], [1]])


def test_of_several_true_texts_the_one_that_parts_latest_is_taken():
    assert closest_text([1, 2, 3], [[1, 9], [1, 2, 9], [1, 2], []]) == [1, 2, 9]
    assert closest_text([1], [[5], [6]]) == [5]
    assert (
        shared_prefix_length([1, 2, 3], [1, 2, 4]),
        shared_prefix_length([], [1]),
        shared_prefix_length([1, 2], [1, 2]),
    ) == (2, 0, 2)
    with pytest.raises(PromptError, match="no true text"):
        closest_text([1], [[]])


def test_an_aligned_reference_is_the_mean_of_the_nearest_right_states_with_its_truth(monkeypatch):
    monkeypatch.setattr(reference_states, "_CHUNK", 1)
    bank = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [0.5, 5.0], [1.5, 7.0]])
    truths, right = ["yes", "yes", "yes", "yes", "no", "no"], [True, False, True, True, True, True]
    states = torch.tensor([[0.9, 0.0], [0.9, 0.0], [8.0, 0.0]])
    known = right_states(bank, truths, right)
    assert {truth: len(rows) for truth, rows in known.items()} == {"yes": 3, "no": 2}
    found = aligned_states(states, ["yes", "no", "yes"], known, k=2)
    assert found.tolist() == [[1.0, 0.0], [1.0, 6.0], [5.5, 0.0]]  # the wrong state at 1 is no one's neighbour


@pytest.mark.parametrize("k", [0, 2, True, 1.0])
def test_more_neighbours_than_there_are_is_refused(k):
    with pytest.raises(SettingError, match="from 1 to 1, the states of the bank that rightly say no"):
        aligned_states(torch.zeros(1, 2), ["no"], right_states(torch.zeros(3, 2), ["no", "no", "yes"], [True, False, True]), k)


def test_an_answer_that_the_bank_never_gives_rightly_has_no_reference():
    known = right_states(torch.zeros(2, 2), ["no", "yes"], [False, True])
    with pytest.raises(SettingError, match="from 1 to 0"):
        aligned_states(torch.zeros(1, 2), ["no"], known, 1)


@pytest.mark.gpu
def test_a_gpu_finds_the_same_references():
    bank, states = torch.randn(200, 16), torch.randn(9, 16)
    known = right_states(bank.cuda(), ["yes", "no"] * 100, [True] * 200)
    found = aligned_states(states.cuda(), ["no"] * 9, known, 5)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), aligned_states(states, ["no"] * 9, {"no": bank[1::2]}, 5), rtol=1e-5, atol=1e-6)
