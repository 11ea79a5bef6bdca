"""What the pocket models do not have: a draft model whose tokens are checked at each request's strength, and a soft cap."""

import pytest
from engines import INTERPRETED, call, generate
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
        llama.folder, generate(requests), call("loading:about"), env=INTERPRETED, **with_mgap(llama, SERVER), **more
    )
    assert tokens(made) == expected
    assert about["runner"] == "V2"
    assert 0 < about["accepted"] < about["draft"], "some drafts are what the corrected model says, and some are not"


def test_a_soft_capped_head_is_asked_twice(gemma, engines):
    ran = engines.run(gemma.folder, generate(gemma.requests()), **with_mgap(gemma, 5.0), **SETTINGS)
    assert tokens(ran[0]) == gemma.answers(5.0)
    assert differing(gemma.answers(5.0), gemma.answers()) >= 8
    assert "by a second pass through the head" in ran.log
