"""Contrasts of two contexts, each of them a request of one continuous batch, say what they say in transformers."""

import pytest
from engines import CARDS, FIRST, Refused, generate
from PIL import Image
from strengths import tokens
from worlds import TOKENS

import mgap
from mgap.serving.engine_settings import PAIR_SCHEDULER

PAIRED = {"scheduler_cls": PAIR_SCHEDULER, "enable_prefix_caching": False, "async_scheduling": False}
SIZES = {  # how the batch is cut: eight requests at a time; prompts in pieces; room for one pair and a half
    "whole": {},
    "in pieces": {"max_num_batched_tokens": 48, "enable_chunked_prefill": True},
    "odd": {"max_num_seqs": 3},
}


@pytest.fixture(scope="module")
def nulls(work):
    """`nulls(world)`: its requests about black pictures of the same sizes."""

    def make(world):
        made = []
        for number, (each, (name, _)) in enumerate(zip(world.requests(), world.asked, strict=True)):
            path = work / f"null-{world.family}-{number}.png"
            Image.new("RGB", world.draw(name).size).save(path)
            made.append({**each, "picture": str(path)})
        return made

    return make


def answers(world, method):
    """Of transformers, to every question of the world."""
    with world.model.using(method):
        return [list(world.model.answer(world.draw(name), ask, max_new_tokens=TOKENS).token_ids) for name, ask in world.asked]


def paired(requests, others, alpha, beta):
    """Main requests and the others, one after the other, as members of pairs."""
    every = []
    for number, both in enumerate(zip(requests, others, strict=True)):
        for is_main, each in zip((True, False), both, strict=True):
            member = {"id": str(number), "is_main": is_main, "alpha": alpha, "beta": beta}
            every.append({**each, "sampling": {**each["sampling"], "extra_args": {"mgap_pair": member}}})
    return every


@pytest.mark.parametrize("size", SIZES)
def test_a_contrast_with_a_null_image(world, served, engines, nulls, size):
    expected = answers(world, mgap.Blind(rho=1.0, beta=0.1))
    asked = paired(world.requests(), nulls(world), 1.0, 0.1)
    (made,) = engines.run(served[world.family], generate(asked), env=FIRST, **PAIRED, **SIZES[size])
    assert tokens(made)[::2] == expected
    assert tokens(made)[1::2] == expected, "the other context went on with the same tokens"
    assert sum(a != b for a, b in zip(expected, world.answers(), strict=True)) >= 5


def test_a_disturbing_instruction_beside_plain_requests(world, served, engines):
    """Prompts of different lengths; the plain requests of the same batch stay plain."""
    method, backbone = mgap.ICD(alpha=1.0, beta=0.1), world.model.backbone
    edit, others = method._edit(backbone), []
    for each in world.requests():
        place = each["tokens"].index(backbone.image_token_id)
        others.append({**each, "tokens": edit(each["tokens"], place, place + 1)})
    expected = answers(world, method)
    asked = paired(world.requests(), others, 1.0, 0.1)
    mixed = [each for row, plain in enumerate(world.requests()) for each in (*asked[2 * row : 2 * row + 2], plain)]
    (made,) = engines.run(served[world.family], generate(mixed), env=FIRST, **PAIRED)
    assert tokens(made)[::3] == expected
    assert tokens(made)[2::3] == world.answers()
    assert sum(a != b for a, b in zip(expected, world.answers(), strict=True)) >= 5


@pytest.mark.gpu
def test_drawn_tokens_are_the_same_in_both_contexts(llava, served, engines, nulls):
    drawn = {"temperature": 1.0, "seed": 7}
    both = (
        [{**each, "sampling": {**each["sampling"], **drawn}} for each in rows[-6:]] for rows in (llava.requests(), nulls(llava))
    )
    (made,) = engines.run(served["llava"], generate(paired(*both, 0.5, 0.0)), env=FIRST, **PAIRED)
    assert tokens(made)[::2] == tokens(made)[1::2]


def test_what_does_not_go_with_pairs_is_refused(llava, served, engines, nulls):
    asked = paired(llava.requests()[:1], nulls(llava)[:1], 1.0, 0.1)
    with pytest.raises(Refused, match="this engine keeps no requests in step"):
        engines.run(served["llava"], generate(asked), env=FIRST)
    with pytest.raises(Refused, match="pairs of requests do not go with prefix caching"):
        engines.run(served["llava"], env=FIRST, **{**PAIRED, "enable_prefix_caching": True})
    shorter = [asked[0], {**asked[1], "sampling": {**asked[1]["sampling"], "max_tokens": 1}}]
    with pytest.raises(Refused, match="one request of a pair ended before the other"):
        engines.run(served["llava"], generate(shorter), env=FIRST, **PAIRED, alone=True)
    warm = [{**each, "sampling": {**each["sampling"], "temperature": 1.0}} for each in asked]
    with pytest.raises(Refused, match="both requests must choose alike"):
        engines.run(served["llava"], generate(warm), env=FIRST, **PAIRED)
    if not CARDS:
        seeded = [{**each, "sampling": {**each["sampling"], "seed": 7}} for each in warm]
        with pytest.raises(Refused, match="on a CPU vLLM cannot take a drawn number back"):
            engines.run(served["llava"], generate(seeded), env=FIRST, **PAIRED)
