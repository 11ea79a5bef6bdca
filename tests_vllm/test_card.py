"""What only a card has: CUDA graphs, bfloat16 as users serve it, speculation with every request's own strength."""

import pytest
from engines import call, generate
from strengths import OWN, SERVER, mixed, tokens, with_alpha, with_mgap

pytestmark = pytest.mark.gpu

COMPILED = {"enforce_eager": False, "alone": True, "env": {"TORCHDYNAMO_DISABLE": "0"}, "seconds": 400}


def test_compiled_models_and_graphs_with_strengths_of_their_own(world, served, engines):
    requests, expected = mixed(world)
    step = generate(requests)
    ran = engines.run(served[world.family], step, step, call("loading:about"), **COMPILED, **with_mgap(world, SERVER))
    assert tokens(ran[0]) == tokens(ran[1]) == expected
    assert ran[2]["compiled"]
    assert ran[2]["graphs"], "CUDA graphs were captured"
    assert ran[2]["runner"] == "V2"
    assert "fused kernels" in ran.log


def test_drafts_of_n_grams_are_checked_at_each_requests_own_strength(world, served, engines):
    requests, expected = mixed(world)
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
    ran = engines.run(served[world.family], generate(requests), alone=True, **drafts, **with_mgap(world, SERVER))
    assert tokens(ran[0]) == expected


def test_in_bfloat16_strengths_of_one_batch_are_each_requests_own(world, served, engines):
    """Held against the same engine: in 16 bits its tokens are not those of transformers in float32."""
    requests = world.requests()
    own = [SERVER if OWN[number % 3] is None else OWN[number % 3] for number in range(len(requests))]
    whole = [generate(with_alpha(requests, alpha)) for alpha in (0.0, SERVER, 5.0)]
    mix = [with_alpha([each], alpha)[0] if alpha != SERVER else each for each, alpha in zip(requests, own, strict=True)]
    on = {**COMPILED, "dtype": "bfloat16", "max_num_seqs": len(requests), "enable_prefix_caching": False}
    *alone, together = engines.run(served[world.family], *whole, generate(mix), **on, **with_mgap(world, SERVER))
    by_alpha = dict(zip((0.0, SERVER, 5.0), map(tokens, alone), strict=True))
    assert tokens(together) == [by_alpha[alpha][number] for number, alpha in enumerate(own)]
    assert by_alpha[0.0] != by_alpha[5.0]
    plain = engines.run(served[world.family], generate(requests), **on)
    assert tokens(plain[0]) == by_alpha[0.0], "at alpha 0 the logits are the engine's own"
