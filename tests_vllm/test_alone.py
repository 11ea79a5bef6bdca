"""MGAP in engines that need a process of their own: two ranks, drafted tokens, compiled models."""

import pytest
from engines import CARDS, FIRST, MINOR, call, generate
from strengths import SERVER, mixed, tokens, with_alpha, with_mgap


@pytest.mark.skipif(CARDS == 1, reason="needs two cards, and there is one")
def test_two_ranks_of_a_sharded_head(worlds, served, engines):
    world = worlds["llava"]
    requests, expected = mixed(world)
    two = {"tensor_parallel_size": 2, "alone": True, "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}}
    ran = engines.run(served["llava"], generate(requests), **with_mgap(world, SERVER), **two)
    assert tokens(ran[0]) == expected
    assert ran.log.count("MGAP on ") == 2


@pytest.mark.skipif(MINOR < (0, 31) and not CARDS, reason="this vLLM's n-gram drafts do not run on a CPU, without MGAP either")
def test_drafted_tokens_are_checked_under_mgap_and_a_strength_of_its_own_is_refused(worlds, served, engines):
    """The first model runner does not say which rows are whose; the second does (test_text_models.py)."""
    world = worlds["llava"]
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}, "alone": True}
    drafts["env"] = FIRST
    own = call("loading:refused_request", request=with_alpha(world.requests()[:1], 0)[0])
    made, said = engines.run(served["llava"], generate(world.requests()), own, **with_mgap(world, 5.0), **drafts)
    assert tokens(made) == world.answers(5.0)
    assert "leave it out, or switch speculation off" in said


def test_compiled_models(worlds, served, engines, work):
    world = worlds["llava"]
    anew = {"TORCHDYNAMO_DISABLE": "0", "VLLM_CACHE_ROOT": str(work / "compiled")}
    compiled = {"enforce_eager": False, "alone": True, "env": anew}
    made, about = engines.run(
        served["llava"], generate(world.requests()), call("loading:about"), **compiled, **with_mgap(world, 5.0)
    )
    assert about["compiled"]
    assert tokens(made) == world.answers(5.0)
