"""A bank of states: those that plain decoding chooses tokens from, whole after saving, and refused for another model."""

import json

import pytest
import torch

import mgap
from mgap.decoding.effective_states import first_states
from mgap.errors import BackboneMismatch, ModelError, NonFiniteStates, PromptError, SettingError
from mgap.priors.bank import Bank
from tests.reference.departure import last_state
from tests.reference.loop import decode

PROMPTS = ["What?", "Is there a dog in the image?", "How many people are there in this picture?"]


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def test_its_states_are_those_that_decoding_chooses_the_first_token_from(exact, picture):
    pictures, seen = [picture, picture, picture.rotate(90, expand=True)], []
    bank = Bank.collect(exact, iter(pictures), iter(PROMPTS), batch_size=2, progress=seen.append)
    assert seen == [2, 3]
    assert bank.states.dtype == torch.float32
    alone = [last_state(exact, exact.backbone.encode([p], [q])) for p, q in zip(pictures, PROMPTS, strict=True)]
    torch.testing.assert_close(bank.states.double(), torch.tensor(alone, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    with first_states(exact, None) as read:
        seen = read(exact.backbone.encode(pictures[:2], PROMPTS[:2]))
    torch.testing.assert_close(bank.states[:2], seen.at(0.0), rtol=1e-4, atol=1e-4)
    assert bank.tokens[:2].tolist() == seen.plain_tokens()
    assert (bank.rows.tolist(), bank.steps.tolist()) == ([0, 1, 2], [0, 0, 0])


def test_along_answers_there_is_a_state_for_every_token_and_none_for_what_is_padded(exact, picture, monkeypatch):
    pictures = [picture, picture.rotate(90, expand=True), picture]
    said = [exact.answer(p, q, max_new_tokens=8).token_ids for p, q in zip(pictures, PROMPTS, strict=True)]
    own = exact.backbone.model.generation_config
    monkeypatch.setattr(own, "eos_token_id", [own.eos_token_id, said[0][2], said[1][4]])  # a random model ends nowhere itself
    bank = Bank.collect(exact, pictures, PROMPTS, batch_size=3, max_new_tokens=8)
    lengths = bank.rows.bincount().tolist()
    assert len(set(lengths)) > 1
    for row, (image, prompt) in enumerate(zip(pictures, PROMPTS, strict=True)):
        states = []

        def step(hidden, head, _norm, states=states):
            states.append(hidden[-1])
            return head(hidden[-1]).tolist()

        tokens = decode(exact, exact.backbone.encode([image], [prompt]), step, 8)
        ours = bank.rows == row
        assert tuple(bank.tokens[ours].tolist()[: len(tokens)]) == tokens
        assert lengths[row] == len(tokens) or tokens[-1] == exact.backbone.image_token_id
        assert bank.steps[ours].tolist() == list(range(lengths[row]))
        torch.testing.assert_close(bank.states[ours][: len(tokens)].double(), torch.stack(states), rtol=1e-3, atol=1e-4)


def test_its_tokens_are_those_of_the_plain_answer(exact, picture):
    bank = Bank.collect(exact, [picture] * 3, PROMPTS, batch_size=1, max_new_tokens=5)
    for row, prompt in enumerate(PROMPTS):
        assert tuple(bank.tokens[bank.rows == row].tolist()) == exact.answer(picture, prompt, max_new_tokens=5).token_ids


def test_states_keep_the_dtype_of_the_model(checkpoints, picture, tmp_path):
    half = mgap.load(str(checkpoints["llava"]), dtype=torch.bfloat16)
    bank = Bank.collect(half, [picture] * 3, PROMPTS, folder=tmp_path)
    assert {part.dtype for part in bank.parts} == {torch.bfloat16}
    assert bank.states.dtype == torch.float32
    assert torch.equal(bank.states, Bank.collect(half, [picture] * 3, PROMPTS).states)
    assert json.loads((tmp_path / "bank.json").read_text())["dtype"] == "bfloat16"


def test_a_saved_bank_comes_back_whole(exact, picture, tmp_path):
    bank = Bank.collect(exact, [picture] * 3, PROMPTS)
    bank.save(tmp_path / "bank")
    again = Bank.load(tmp_path / "bank")
    assert torch.equal(again.states, bank.states)
    assert (again.identity, again.origin) == (bank.identity, bank.origin)
    again.require(exact.backbone)
    index = json.loads((tmp_path / "bank" / "bank.json").read_text())
    assert index["count"] == 3
    assert {"template_sha256", "asked_sha256", "dtype", "mgap", "max_new_tokens"} <= set(index["origin"])


def test_another_model_is_refused(checkpoints, picture):
    one, other = (mgap.load(str(folder)) for folder in checkpoints.values())
    bank = Bank.collect(one, [picture], ["What?"])
    with pytest.raises(BackboneMismatch, match="the bank was made with"):
        bank.require(other.backbone)
    with pytest.raises(BackboneMismatch, match="width 3"):
        Bank.of(torch.zeros(2, 3)).require(one.backbone)


@pytest.mark.parametrize(("images", "prompts"), [(1, 2), (2, 1)])
def test_pictures_and_prompts_must_be_as_many(exact, picture, images, prompts):
    with pytest.raises(PromptError, match="more"):
        Bank.collect(exact, [picture] * images, PROMPTS[:prompts])


def test_a_second_branch_is_noticed(exact, picture):
    with exact.using(mgap.Blind()), pytest.raises(ModelError, match="plain decoding"):
        Bank.collect(exact, [picture], ["What?"])


def test_what_is_no_bank_is_refused(exact):
    with pytest.raises(PromptError, match="needs rows"):
        Bank.collect(exact, [], [])
    for setting in ("batch_size", "max_new_tokens", "per_part"):
        with pytest.raises(SettingError, match=setting):
            Bank.collect(exact, [], [], **{setting: 0})
    for states in (torch.zeros(3), torch.zeros(0, 3), torch.zeros(()), torch.zeros(2, 3, dtype=torch.int64)):
        with pytest.raises(SettingError, match="matrix"):
            Bank.of(states)
    with pytest.raises(SettingError, match="steps"):
        Bank.of(torch.zeros(2, 3), steps=torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_states_that_are_no_numbers_are_refused_in_every_dtype(value, dtype):
    states = torch.zeros(200, 30, dtype=dtype)
    states[77, 13] = value
    with pytest.raises(NonFiniteStates, match="float32"):
        Bank.of(states)


def test_a_bank_by_picture_counts_pictures_and_opens_each_once(exact, picture):
    opened, questions = [], [("a", PROMPTS[0]), ("a", PROMPTS[1]), ("b", PROMPTS[0])]
    bank = Bank.collect_by_picture(exact, questions, lambda name: opened.append(name) or picture, max_new_tokens=2)
    by_answer = Bank.collect(exact, [picture] * 3, [prompt for _, prompt in questions], max_new_tokens=2)
    assert torch.equal(bank.states, by_answer.states)
    assert bank.rows.tolist() == [{0: 0, 1: 0, 2: 1}[row] for row in by_answer.rows.tolist()]
    assert opened == ["a", "b"]
