"""Two hundred requests to one server at once: each with its own strength and picture, some wrong, some that leave."""

import asyncio
import base64
import io
import re
from collections import Counter
from typing import Any

import httpx
import pytest
from PIL import Image
from strengths import SERVER, with_mgap
from worlds import FIRST, TOKENS

MANY = 200
ALPHAS = (None, 0.0, SERVER, 5.0)  # None: the server's
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"vllm_xargs": {"mgap_alpha": -1}}, "must be a finite number of at least 0"),
    ({"vllm_xargs": {"mgap_alpha": "high"}}, "must be a finite number of at least 0"),
    ({"vllm_xargs": {"mgap_strength": 1}}, "a request may set mgap_alpha only"),
    ({"max_tokens": -1}, "max_tokens"),
]
EVERY = 10  # of ten requests the fourth is wrong, and the eighth leaves in the middle
WRONG_ONE, LEAVES = 3, 7
PATIENCE = 120.0  # seconds
UNSEEN = FIRST + 1000  # scenes


def encoded(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def pictures(llava):
    return [encoded(llava.draw(name)) for name, _ in llava.asked]


@pytest.fixture
def body(running, llava, pictures):
    """A request: question and strength go round, so that neighbours in a batch differ in both."""

    def make(number: int, *, unseen: int | None = None, **more: Any) -> dict[str, Any]:
        """`unseen`: about a picture that no other request shows."""
        question, alpha = number % len(llava.asked), ALPHAS[number % len(ALPHAS)]
        url = pictures[question] if unseen is None else encoded(llava.draw(f"pocket_{UNSEEN + unseen}.png"))
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": llava.asked[question][1]}]
        own = {} if alpha is None else {"vllm_xargs": {"mgap_alpha": alpha}}
        messages = [{"role": "user", "content": content}]
        return {"model": running.model, "messages": messages, "temperature": 0, "max_tokens": TOKENS, **own, **more}

    return make


def with_client(running, call):
    """Run a coroutine of a client; every request has a connection of its own."""

    async def run():
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=PATIENCE, limits=limits) as client:
            return await call(client)

    return asyncio.run(run())


async def ask(client: httpx.AsyncClient, words: dict[str, Any]) -> tuple[int, str]:
    """Status, and the answer or why there is none."""
    answer = await client.post("/v1/chat/completions", json=words)
    if answer.status_code != 200:
        return answer.status_code, answer.text
    return 200, answer.json()["choices"][0]["message"]["content"].strip()


async def leave(client: httpx.AsyncClient, words: dict[str, Any]) -> tuple[int, str]:
    """Go away after the first words of a stream."""
    async with client.stream("POST", "/v1/chat/completions", json={**words, "stream": True}) as heard:
        async for line in heard.aiter_lines():
            if line.startswith("data: "):
                break
        return heard.status_code, "left"


def wanted(number: int, texts) -> str:
    alpha = ALPHAS[number % len(ALPHAS)]
    return texts[SERVER if alpha is None else alpha][number % len(texts[0.0])]


def storm(running, body, texts, *, shared: bool) -> None:
    """Two hundred at once, and what must come of each. `shared`: wrong requests show the pictures of right ones."""

    async def all_of_them(client):
        def one(number):
            if number % EVERY == WRONG_ONE:
                unseen = None if shared else number
                return ask(client, body(number, unseen=unseen, **WRONG[number // EVERY % len(WRONG)][0]))
            return (leave if number % EVERY == LEAVES else ask)(client, body(number))

        return await asyncio.gather(*map(one, range(MANY)))

    outcomes = with_client(running, all_of_them)
    wrong = {number for number in range(MANY) if number % EVERY == WRONG_ONE}
    left = {number for number in range(MANY) if number % EVERY == LEAVES}
    for number in wrong:
        status, why = outcomes[number]
        assert (status, WRONG[number // EVERY % len(WRONG)][1] in why) == (400, True), why
    assert {outcomes[number] for number in left} == {(200, "left")}
    others = [number for number in range(MANY) if number not in wrong | left]
    assert Counter(outcomes[number][0] for number in others) == {200: MANY * 8 // EVERY}
    assert [outcomes[number][1] for number in others] == [wanted(number, texts) for number in others]
    assert len(set(outcomes)) > 20, "they do not all say the same"


def test_two_hundred_at_once_are_answered_as_one_at_a_time_or_refused(running, body, texts):
    storm(running, body, texts, shared=False)


def test_a_picture_whose_first_request_was_refused_is_answered_at_the_second_try_at_the_latest(running, body):
    """vLLM's front end keeps a refused request's picture, which its engine never got, and asks to try again (HTTP 500)."""

    async def refused_then_right(client):
        refused = await ask(client, body(0, unseen=MANY, vllm_xargs={"mgap_alpha": -1}))
        return refused[0], [(await ask(client, body(0, unseen=MANY)))[0] for _ in range(3)]

    status, tries = with_client(running, refused_then_right)
    assert status == 400
    assert tries in ([200, 200, 200], [500, 200, 200])


def test_the_server_answers_afterwards_and_its_counts_add_up(running, body, texts):
    """Rows that were looked at only grow, and every one was a row of some step."""

    async def a_few(client):
        return [await ask(client, body(number)) for number in range(8)]

    assert with_client(running, a_few) == [(200, wanted(number, texts)) for number in range(8)]
    told = re.findall(r"MGAP: mean beta ([\d.]+), most likely token changed in ([\d.]+)% of (\d+) rows looked at", running.log)
    rows = [int(each[2]) for each in told]
    assert rows, "log_every=1"
    assert rows == sorted(rows)
    assert all(0 <= float(beta) < 5 and 0 <= float(changed) <= 100 for beta, changed, _ in told)
    assert rows[-1] <= 2 * MANY * (TOKENS + 1)
    assert "Traceback" not in running.log


def test_without_vllms_cache_of_pictures_a_refusal_is_nobody_elses(server, served, llava, body, texts):
    """`--mm-processor-cache-gb 0`: right requests about a refused one's picture are answered at the first try."""
    uncached = server(served["llava"], mm_processor_cache_gb=0, **with_mgap(llava, SERVER))
    storm(uncached, body, texts, shared=True)
    assert uncached.stop() == 0
