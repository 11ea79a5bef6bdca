"""Methods that read the blind state: the three ways to have it agree, and one of them runs the model only when it is asked."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import mgap
from mgap.decoding.answer_states import answer_states
from mgap.decoding.effective_states import first_states
from mgap.errors import SettingError
from mgap.methods.kinds.last_used import LastUsed
from mgap.methods.mgap import entropy_of
from mgap.types import Decoding
from tests.methods.builders import build

NAMES = ["prompt-prior", "tether"]
QUESTIONS = ["Is there a dog?", "What?", "Describe what you can make out in this long and winding picture, please."]
NEW = 12


@contextmanager
def counting(model):
    """How many rows pass the first block, and in how many calls."""
    seen = []
    handle = model.backbone.layers[0].register_forward_pre_hook(
        lambda _block, args, kwargs: seen.append(len(args[0] if args else kwargs["hidden_states"])), with_kwargs=True
    )
    try:
        yield seen
    finally:
        handle.remove()


def answers(model, pictures, prompts, method, **options):
    with model.using(method):
        return [a.token_ids for a in model.answers(pictures, prompts, batch_size=3, max_new_tokens=NEW, **options)]


def plain_entropies(model, picture):
    """The plain answer to the first question, and the entropy [T] at each of its tokens."""
    with answer_states(model, None, Decoding(max_new_tokens=NEW)) as read:
        (told,) = read(model.backbone.encode([picture], QUESTIONS[:1]))
    head = model.backbone.probe_head()
    with torch.no_grad():
        return told.tokens, entropy_of(head.post(head.product(told.h).float()))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("null", ["black_same_size", "no_image"])
@pytest.mark.parametrize("name", NAMES)
def test_the_three_ways_say_the_same(model, prior, picture, name, null, gated):
    unsure = float(plain_entropies(model, picture)[1].median()) if gated else 0.0  # about half of the tokens ask
    method = replace(build(name, prior), null_image=null, unsure=unsure)
    pictures = [picture] * 3
    said = {
        mode: answers(model, pictures, QUESTIONS, replace(method, branch_mode=mode))
        for mode in ("batched", "sequential", "cached")
    }
    assert said["batched"] == said["sequential"] == said["cached"]
    assert said["batched"] != [a.token_ids for a in model.answers(pictures, QUESTIONS, batch_size=3, max_new_tokens=NEW)]


@pytest.mark.parametrize("name", NAMES)
def test_the_cached_branch_follows_beams_and_samples(model, prior, picture, name):
    method = build(name, prior)
    for options in ({"num_beams": 3}, {"sample": True, "seed": 3}, {"sample": True, "num_return_sequences": 3, "seed": 4}):
        said = [
            answers(model, [picture], QUESTIONS[:1], replace(method, branch_mode=mode), **options)
            for mode in ("batched", "cached")
        ]
        assert said[0] == said[1]


@pytest.mark.parametrize("name", NAMES)
def test_where_the_model_is_sure_the_cached_branch_is_not_run(model, prior, picture, name):
    method = replace(build(name, prior), unsure=1e3, branch_mode="cached")
    with model.using(method), counting(model) as calls:
        said = model.answer(picture, QUESTIONS[0], max_new_tokens=NEW)
    assert len(calls) == len(said.token_ids), "no token asks"


@pytest.mark.both_families
def test_a_prompt_that_was_asked_before_costs_no_forward(model, prior, picture):
    method = mgap.PromptPrior(prior=prior, rho=8.0, branch_mode="cached")
    with model.using(method), counting(model) as calls:
        first = model.answer(picture, QUESTIONS[0], max_new_tokens=1)
        assert len(calls) == 2
        again_ = model.answer(picture, QUESTIONS[0], max_new_tokens=1)
        assert len(calls) == 3, "one forward, the main one"
        model.answer(picture, QUESTIONS[1], max_new_tokens=1)
        assert len(calls) == 5, "another prompt is another state"
    assert first.token_ids == again_.token_ids


def test_what_was_missed_is_read_in_one_forward(model, prior, picture):
    """The branch sleeps until the entropy rises; then one forward brings it up to the newest token."""
    tokens, entropies = plain_entropies(model, picture)
    threshold = float(entropies.sort().values[-2:].mean())  # one token is above it
    place = int(entropies.argmax())
    assert place > 0, "or nothing is missed"
    method = mgap.PromptPrior(prior=prior, rho=0.0, unsure=threshold, branch_mode="cached")
    with model.using(method), counting(model) as calls:
        said = model.answer(picture, QUESTIONS[0], max_new_tokens=NEW)
    assert said.token_ids == tokens, "a strength of 0 is plain decoding"
    assert len(calls) == len(said.token_ids) + 2, "the prompt, and all that was missed of the answer"


@pytest.mark.parametrize("name", NAMES)
def test_the_effective_state_is_what_the_answer_was_decoded_from(model, prior, picture, name):
    for mode in ("batched", "cached"):
        method = replace(build(name, prior), branch_mode=mode, unsure=float(plain_entropies(model, picture)[1].median()))
        inputs, head = model.backbone.encode([picture] * 2, QUESTIONS[:2]), model.backbone.probe_head()
        with answer_states(model, method, Decoding(max_new_tokens=6)) as read:
            for told in read(inputs):
                again_ = head.post(head.product(told.used).float()).argmax(-1).tolist()
                assert tuple(again_) == told.tokens


def test_a_strength_of_nothing_is_the_plain_state(model, prior, picture):
    inputs = model.backbone.encode([picture], QUESTIONS[:1])
    with first_states(model, mgap.PromptPrior(prior=prior)) as read:
        seen = read(inputs)
    assert torch.equal(seen.at(0.0), seen.h)
    assert not torch.equal(seen.at(1.0), seen.h)


def test_the_memory_forgets_what_was_asked_longest_ago():
    memory = LastUsed(2)
    for number in range(3):
        memory[number] = str(number)
        assert memory[0] == "0"
    assert dict(memory) == {2: "2", 0: "0"}
    memory.update({3: "3", 4: "4"})
    assert list(memory) == [3, 4]


def test_no_memory_asks_every_time(model, prior, picture):
    method = mgap.PromptPrior(prior=prior, branch_mode="cached", memory=0)
    with model.using(method), counting(model) as calls:
        for _ in range(2):
            model.answer(picture, QUESTIONS[0], max_new_tokens=1)
    assert len(calls) == 4


@pytest.mark.parametrize(
    "setting", [{"rho": -1}, {"unsure": float("nan")}, {"null_image": "white"}, {"memory": -1}, {"branch_mode": "x"}]
)
def test_wrong_settings_are_refused_by_name(prior, setting):
    with pytest.raises(SettingError, match=next(iter(setting))):
        mgap.PromptPrior(prior=prior, **setting)
