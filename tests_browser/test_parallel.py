"""Two hundred visitors at once, some of whom leave or are slow: everybody else has their own answer, or is told why not."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from visitors import Outcome, Visitor, ask_event, make_client, record

from mgap.inspector.server import QUEUE_SIZE
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.language import ask_colour

MANY = 200
FIRST = DEVELOPMENT + 60_000  # nothing is chosen, or judged, on these scenes
METHODS = ("vanilla", "mgap")


@pytest.fixture(scope="module")
def questions():
    """A scene for every visitor, and the colour of a thing in it."""
    return [(scene, ask_colour(scene.names[0])) for scene in scenes(FIRST, MANY)]


def with_visitors(server, call):
    """Run a coroutine of a client and the number of the event that asks; the browser's tests keep a loop running beside it."""

    async def run():
        async with make_client(server.address) as client:
            return await call(client, await ask_event(client))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


def open_files(server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def goes_back_to(count: int, server, seconds: float = 30) -> bool:
    """Whether the server lets go of its files again. It does so between answers, hence it is asked for something meanwhile."""
    until = time.monotonic() + seconds
    with httpx.Client(base_url=server.address, trust_env=False) as client:
        while True:
            client.get("/config")
            left = open_files(server) - 1  # without this client's connection
            if left <= count or time.monotonic() > until:
                return left <= count


def is_refused(outcome: Outcome) -> bool:
    return outcome.status == 503 and f"Queue is full. Max size is {QUEUE_SIZE}" in outcome.error


def asked_alone(server, questions, places):
    """What each of these visitors is answered with nobody else there."""

    async def one_by_one(client, event):
        return {place: await Visitor(client, event, *questions[place], METHODS).ask() for place in places}

    return with_visitors(server, one_by_one)


def check_own(server, questions, outcomes):
    """Everybody who was answered has the very answer, every number of it, that they get alone."""
    answered = {place: outcome for place, outcome in outcomes.items() if not is_refused(outcome)}
    assert {(outcome.status, outcome.error) for outcome in answered.values()} == {(200, "")}
    some = list(answered)[:: max(1, len(answered) // 8)]
    alone = asked_alone(server, questions, some)
    assert [answered[place].answers for place in some] == [alone[place].answers for place in some]
    assert all(questions[place][1] in outcome.answers for place, outcome in answered.items())
    assert all('data-state="done"' in outcome.answers for outcome in answered.values())
    assert len({outcome.words for outcome in answered.values()}) > len(answered) // 3, "they do not all say the same"
    return len(answered)


def test_two_hundred_at_once_get_their_own_answers_or_hear_that_the_queue_is_full(server, questions):
    asked_alone(server, questions, [0])
    before = open_files(server)

    async def storm(client, event):
        visitors = [Visitor(client, event, *question, METHODS) for question in questions]
        return dict(enumerate(await asyncio.gather(*(visitor.ask() for visitor in visitors))))

    outcomes = with_visitors(server, storm)
    assert len(outcomes) == MANY
    assert check_own(server, questions, outcomes) >= QUEUE_SIZE
    assert any(map(is_refused, outcomes.values()))
    assert goes_back_to(before, server)


def test_visitors_who_leave_or_are_slow_keep_nobody_from_an_answer(server, questions):
    """Of 30 in line two thirds leave, while they wait or in the middle of an answer, and of the others every third is slow.

    A slow one hears nothing more after its first words until all others have their answers.
    """
    before = open_files(server)

    async def slowly(visitor: Visitor, quick: asyncio.Event) -> Outcome:
        """Hears the first words, and the others only when the quick ones have all been answered."""
        outcome = await visitor.join()
        if outcome.status == 200:
            async with visitor.listening() as messages:
                async for message in messages:
                    record(outcome, message)
                    if message["msg"] == "process_generating":
                        await quick.wait()
        return outcome

    async def storm(client, event):
        visitors = {place: Visitor(client, event, *questions[place], METHODS) for place in range(30)}
        leaving, quick = ("estimation", "process_starts", "process_generating"), asyncio.Event()
        late = [place for place in visitors if place % 9 == 6]

        def visit(place: int, visitor: Visitor):
            if place % 3:
                return visitor.leave(leaving[place % len(leaving)])
            return slowly(visitor, quick) if place in late else visitor.ask()

        begun = {place: asyncio.create_task(visit(place, each)) for place, each in visitors.items()}
        await asyncio.gather(*(task for place, task in begun.items() if place not in late))
        quick.set()
        return {place: await task for place, task in begun.items() if place % 3 == 0}

    stayed = with_visitors(server, storm)
    assert check_own(server, questions, stayed) == len(stayed) == 10
    assert goes_back_to(before, server)
    assert "Traceback" not in server.log


def test_what_is_wrong_is_told_to_who_asked_it_and_to_nobody_else(server, questions):
    scene = questions[0][0]
    wrong = {
        "moon": ({"theme": "moon", "things": []}, "What?", METHODS),
        "the question is empty": (scene, " ", METHODS),
        "at most 2,000 are asked here": (scene, "x" * 100_000, METHODS),
        "no method is chosen": (scene, "What?", ()),
    }

    async def mixed(client, event):
        good = [Visitor(client, event, *question, METHODS) for question in questions[:6]]
        bad = [Visitor(client, event, *each) for each in wrong.values()]
        told = await asyncio.gather(*(visitor.ask() for visitor in (*good, *bad)))
        return told[: len(good)], told[len(good) :]

    good, bad = with_visitors(server, mixed)
    assert check_own(server, questions, dict(enumerate(good))) == 6
    assert [(why in outcome.error, outcome.answers) for why, outcome in zip(wrong, bad, strict=True)] == [(True, "")] * len(
        wrong
    )
