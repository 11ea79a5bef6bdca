"""What the pocket models do not have: a draft model whose tokens are checked at each request's strength, and a soft cap."""

import pytest
from engines import CARDS, SECOND, call, generate, needs_second
from strengths import OWN, SERVER, tokens, with_alpha, with_mgap
from texts import SETTINGS, Text


@pytest.fixture(scope="module")
def llama(work, engines):
    return Text("llama", work)


@pytest.fixture(scope="module")
def gemma(work, engines):
    return Text("gemma2", work)


def differing(one, other):
    return sum(a != b for a, b in zip(one, other, strict=True))


@needs_second
def test_drafted_tokens_are_checked_at_each_requests_own_strength(llama, engines):
    """By the second model runner; the first does not say which rows are whose, and is refused (test_alone.py)."""
    requests, expected = [], []
    for number, each in enumerate(llama.requests(max_tokens=8)[:6]):
        own = OWN[number % 3]
        requests.append(each if own is None else with_alpha([each], own)[0])
        expected.append(llama.answers(SERVER if own is None else own)[number][:8])
    assert differing(expected, [ids[:8] for ids in llama.answers()[:6]]) >= 3
    more = {"disable_log_stats": False, **SETTINGS, **llama.drafted()}
    made, about = engines.run(
        llama.folder, generate(requests), call("loading:about"), env=SECOND, **with_mgap(llama, SERVER), **more
    )
    assert tokens(made) == expected
    assert about["runner"] == "V2"
    assert 0 < about["accepted"] < about["draft"], "some drafts are what the corrected model says, and some are not"


@pytest.mark.skipif(CARDS > 0, reason="a card's kernels for adapters know 16 bits only, which round unlike transformers")
def test_requests_with_an_adapter_are_corrected(llama, engines):
    """The head may change with an adapter, so it is asked twice. One batch has requests of one kind: in mixed ones vLLM's CPU
    build gives the adapter to all, also without MGAP."""
    folder, merged = llama.adapted()
    adapted = [{**each, "adapter": folder} for each in llama.requests()]
    more = {"enable_lora": True, "max_lora_rank": 8, **SETTINGS}
    steps = generate(llama.requests()), generate(adapted), generate(llama.requests())
    ran = engines.run(llama.folder, *steps, alone=True, **with_mgap(llama, 5.0), **more)
    assert [tokens(made) for made in ran] == [llama.answers(5.0), merged.answers(5.0), llama.answers(5.0)]
    assert differing(merged.answers(5.0), llama.answers(5.0)) >= 8
    assert differing(merged.answers(5.0), merged.answers()) >= 8
    assert "by a second pass through the head" in ran.log


def test_a_soft_capped_head_is_asked_twice(gemma, engines):
    ran = engines.run(gemma.folder, generate(gemma.requests()), **with_mgap(gemma, 5.0), **SETTINGS)
    assert tokens(ran[0]) == gemma.answers(5.0)
    assert differing(gemma.answers(5.0), gemma.answers()) >= 8
    assert "by a second pass through the head" in ran.log
