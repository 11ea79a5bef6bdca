"""MGAP inside engines of vLLM says what it says in transformers, at the server's strength and at a request's own."""

import json

import pytest
import torch
from engines import CARDS, FIRST, SECOND, call, generate, needs_second, rpc
from PIL import Image
from strengths import SERVER, mixed, tokens, with_alpha, with_mgap

import mgap
from mgap.priors.collect_states import blind_states

EXTENSION = "mgap.serving.extension.Extension"
WAY = "fused kernels" if CARDS else "a table of the head's directions"


def test_strengths_change_what_is_said(world):
    assert world.answers(0.0) == world.answers()
    for one, other, least in ((SERVER, None, 5), (5.0, None, 9), (5.0, SERVER, 9)):  # of 20; the 10 descriptions change first
        changed = sum(a != b for a, b in zip(world.answers(one), world.answers(other), strict=True))
        assert changed >= least, "equal answers would prove nothing"


def test_an_engine_says_what_transformers_says(world, served, engines):
    requests, expected = mixed(world)
    all_strong = with_alpha(world.requests(), 5.0)
    steps = (
        generate(world.requests()),
        generate(requests),
        generate(all_strong),
        generate(all_strong),
        generate(with_alpha(world.requests(), 0)),
        rpc("mgap_counts"),
    )
    more = {"worker_extension_cls": EXTENSION, "block_size": 32}  # short prompts fill blocks of it
    ran = engines.run(served[world.family], *steps, **with_mgap(world, SERVER, log_every=0.01), **more)
    own, mix, strong, again, off, (counted,) = ran
    assert tokens(own) == world.answers(SERVER)
    assert tokens(mix) == expected, "strengths of one batch are each request's own"
    assert tokens(strong) == tokens(again) == world.answers(5.0)
    assert all(each["cached"] for each in again), "the second time, prompts were in the prefix cache"
    assert tokens(off) == world.answers()
    assert 0 < counted["beta"] < 5
    assert 0 < counted["changed"] < 1
    assert ran.log.count("MGAP on ") == 1, "one line a rank"
    assert f"alpha=0.75, lambda=0.5, by {WAY}" in ran.log
    assert "MGAP: mean beta 0." in ran.log


def test_a_16_bit_engine_corrects_logits_in_float32(world, served, engines):
    ran = engines.run(served[world.family], call("loading:head_products"), **with_mgap(world, SERVER), dtype="bfloat16")
    own, exact, rounded, error, of_table = json.loads(ran[0])
    assert (own, exact) == ("torch.bfloat16", "torch.float32")
    assert rounded > 1e-3
    assert error < 1e-6
    assert of_table < 1e-6
    assert f"by {WAY}, from float32 logits" in ran.log


def test_priors_are_of_the_states_that_the_engine_has(world, served, engines, work):
    """Blind prompts leave the same state in both, so that a prior fitted with transformers is the engine's own."""
    prompts, black = mgap.default_prompts()[:12], work / "black.png"
    Image.new("RGB", (336, 336)).save(black)
    asked = [{"tokens": world.tokens(each), "picture": str(black), "sampling": {"max_tokens": 1}} for each in prompts]
    (found,) = engines.run(served[world.family], call("loading:states", requests=asked), **with_mgap(world, 0.0))
    there = torch.tensor(json.loads(found))  # [12, d]
    here = torch.cat(list(blind_states(world.model.backbone, prompts)))
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-4)
    ours, theirs = (mgap.Subspace.from_states(each).projector for each in (here, there))
    assert torch.linalg.matrix_norm(ours - theirs, ord=2) < 1e-3


def test_prompts_in_pieces(world, served, engines):
    small = {"max_num_batched_tokens": 32, "enable_chunked_prefill": True}
    (made,) = engines.run(served[world.family], generate(world.requests()), **with_mgap(world, 5.0), **small)
    assert tokens(made) == world.answers(5.0)


def test_logprobs_are_of_the_corrected_distribution(worlds, served, engines):
    world = worlds["llava"]
    descriptions = world.requests(logprobs=1, max_tokens=8)[-4:]
    off, on = with_alpha(descriptions, 0), with_alpha(descriptions, 0.25)
    plain, corrected = engines.run(served["llava"], generate(off), generate(on), **with_mgap(world, SERVER))
    pairs = [(a["logprobs"], b["logprobs"]) for a, b in zip(plain, corrected, strict=True) if a["tokens"] == b["tokens"]]
    assert pairs, "so weak a step leaves some answers as they are"
    assert all(one != other for one, other in pairs)


def test_prompt_logprobs_have_the_servers_strength_whatever_the_others_ask_for(worlds, served, engines):
    world = worlds["llava"]
    one = {**world.requests(prompt_logprobs=0, max_tokens=1)[0]}
    others = with_alpha(world.requests(max_tokens=8)[1:4], 5.0)
    alone, among = engines.run(
        served["llava"],
        generate([one]),
        generate([*others, one]),
        fresh=True,
        **with_mgap(world, SERVER),
        enable_prefix_caching=False,
    )
    assert [list(each.values()) for each in among[-1]["prompt_logprobs"][1:]] == [
        pytest.approx(list(each.values()), abs=1e-4) for each in alone[0]["prompt_logprobs"][1:]
    ]


@needs_second
def test_the_second_model_runner(world, served, engines):
    requests, expected = mixed(world)
    few = [number for number in range(len(requests)) if number % 10 < 4]
    (made,) = engines.run(served[world.family], generate([requests[n] for n in few]), env=SECOND, **with_mgap(world, SERVER))
    assert tokens(made) == [expected[n] for n in few]


@pytest.mark.parametrize(
    "env", [pytest.param(FIRST, id="first runner"), pytest.param(SECOND, id="second runner", marks=needs_second)]
)
def test_another_prior_and_strength_while_it_runs(llava, served, engines, env, tmp_path):
    """Requests without a strength of their own get the new one, those with one keep it."""
    fewer = llava.subspace.truncate(2)
    fewer.save(tmp_path / "fewer")
    own = with_alpha(llava.requests(max_tokens=12), 0.0)
    asked = [each if number % 2 else own[number] for number, each in enumerate(llava.requests(max_tokens=12))]
    few = [number for number in range(len(asked)) if number % 10 < (10 if CARDS or env == FIRST else 2)]  # it is interpreted
    steps = (
        generate([asked[number] for number in few]),
        rpc("mgap_read_next", {"prior": str(tmp_path / "fewer"), "alpha": 5.0}),
        rpc("mgap_check_next"),
        rpc("mgap_take_next"),
        generate([asked[number] for number in few]),
    )
    settings = {"worker_extension_cls": EXTENSION, **with_mgap(llava, SERVER)}
    first, read, checked, _, then = engines.run(served["llava"], *steps, env=env, fresh=True, alone=True, **settings)
    assert "error" not in read[0]
    assert checked == [""]
    with llava.model.using(mgap.MGAP(fewer, alpha=5.0)):
        strong = [llava.model.answer(llava.draw(name), prompt, max_new_tokens=12).token_ids for name, prompt in llava.asked]
    before = [llava.answers(SERVER if number % 2 else 0.0)[number][:12] for number in few]
    after = [list(strong[number]) if number % 2 else llava.answers(0.0)[number][:12] for number in few]
    assert tokens(first) == before
    assert tokens(then) == after
    assert before != after
