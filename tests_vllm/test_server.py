"""The OpenAI server with MGAP, asked by the OpenAI client: chat with a picture, streams, strengths, refusals, a restart."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from strengths import SERVER
from worlds import TOKENS

PARALLEL = 64


def ask(client, world, number, alpha=None, **more):
    """A question about a picture, as anybody's program asks it."""
    name, prompt = world.asked[number]
    file = io.BytesIO()
    world.draw(name).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompt}]
    body = {} if alpha is None else {"vllm_xargs": {"mgap_alpha": alpha}}
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=TOKENS, extra_body={**body, **more.pop("body", {})}, **more
    )


def said(answer):
    return answer.choices[0].message.content.strip()


def test_chat_with_a_picture_at_three_strengths(running, llava, texts):
    client = running.client()
    for number in (0, 12, 17):
        assert said(ask(client, llava, number)) == texts[SERVER][number]
        assert said(ask(client, llava, number, 0)) == texts[0.0][number]
        assert said(ask(client, llava, number, 5.0)) == texts[5.0][number]


def test_a_stream(running, llava, texts):
    parts = ask(running.client(), llava, 12, 5.0, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts).strip() == texts[5.0][12]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"vllm_xargs": {"mgap_alpha": -1}}, "must be a finite number of at least 0"),
        ({"vllm_xargs": {"mgap_alpha": "high"}}, "must be a finite number of at least 0"),
        ({"vllm_xargs": {"mgap_strength": 1}}, "a request may set mgap_alpha only"),
        ({"vllm_xargs": {"mgap_alpha": 1}, "use_beam_search": True, "n": 2}, "beam search"),
    ],
)
def test_what_cannot_be_done_is_a_400(running, llava, asked, why):
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match=why) as refused:
        ask(running.client(), llava, 0, body=asked)
    assert refused.value.status_code == 400


def test_many_at_once_each_with_its_own_strength(running, llava, texts):
    client = running.client()
    alphas = [None, 0.0, 5.0]

    def one(number):
        alpha, question = alphas[number % 3], number % len(llava.asked)
        return said(ask(client, llava, question, alpha)), texts[SERVER if alpha is None else alpha][question]

    with ThreadPoolExecutor(PARALLEL) as pool:
        pairs = list(pool.map(one, range(PARALLEL)))
    assert [got for got, _ in pairs] == [wanted for _, wanted in pairs]
    assert "MGAP: mean beta" in running.log


def test_a_server_that_was_killed_comes_back_the_same(running, llava, server, texts):
    running.kill()
    again = server("pocket/llava", serve=["--prior", str(llava.prior), "--alpha", str(SERVER), "--lam", "0.5"])
    assert said(ask(again.client(), llava, 12)) == texts[SERVER][12]
    assert said(ask(again.client(), llava, 12, 0)) == texts[0.0][12]
    assert again.log.count("MGAP on ") == 1
    ready = httpx.get(f"{again.url}/mgap/ready")
    assert (ready.status_code, ready.json()) == (200, {"is_on": True, "prior": str(llava.prior)})
    kept = httpx.post(f"{again.url}/v1/mgap/prior", json={"alpha": 1})
    assert (kept.status_code, "mgap serve --reload" in kept.text) == (403, True)
    assert "vllm serve " in again.log, "the same server, to be typed without mgap's command"
    assert again.stop() == 0
