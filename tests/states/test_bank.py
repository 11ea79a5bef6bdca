"""A bank of states: those of plain decoding's first token, whole after saving, and refused for another model."""

import json

import pytest
import torch

import mgap
from mgap.decoding.effective import first_states
from mgap.errors import BackboneMismatch, CorruptFile, NonFiniteStates, PromptError, SettingError
from mgap.states.bank import Bank
from tests.reference.departure import last_state

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
        decoded = read(exact.backbone.encode(pictures[:2], PROMPTS[:2])).at(0.0)
    torch.testing.assert_close(bank.states[:2], decoded, rtol=1e-4, atol=1e-4)


def test_a_saved_bank_comes_back_whole(exact, picture, tmp_path):
    bank = Bank.collect(exact, [picture] * 3, PROMPTS)
    bank.save(tmp_path / "bank")
    again = Bank.load(tmp_path / "bank")
    assert torch.equal(again.states, bank.states)
    assert (again.identity, again.origin) == (bank.identity, bank.origin)
    again.require(exact.backbone)
    index = json.loads((tmp_path / "bank" / "bank.json").read_text())
    assert index["count"] == 3
    assert {"template_sha256", "asked_sha256", "dtype", "mgap"} <= set(index["origin"])


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


def test_what_is_no_bank_is_refused(exact, tmp_path):
    with pytest.raises(PromptError, match="needs rows"):
        Bank.collect(exact, [], [])
    with pytest.raises(SettingError, match="batch_size"):
        Bank.collect(exact, [], [], batch_size=0)
    with pytest.raises(SettingError, match="matrix"):
        Bank.of(torch.zeros(3))
    with pytest.raises(NonFiniteStates):
        Bank.of(torch.full((2, 3), torch.nan))
    Bank.of(torch.ones(2, 3)).save(tmp_path)
    index = json.loads((tmp_path / "bank.json").read_text())
    (tmp_path / "bank.json").write_text(json.dumps({**index, "model": {"name": "x"}}))
    with pytest.raises(CorruptFile, match="collect it again"):
        Bank.load(tmp_path)
