"""Visitors of the inspector without a browser: each has a page of its own and asks over HTTP as that page does."""

import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from mgap.inspector.scene_json import plain
from mgap.pocket.scenes import Scene

PATIENCE = 120  # seconds that an answer may take on a busy machine


@dataclass
class Outcome:
    """How it ended for a visitor."""

    status: int  # of the request to get in line
    answers: str = ""  # the page's columns, as they are at the end
    error: str = ""  # a sentence in the page
    messages: list[str] = field(default_factory=list)  # their kinds, in order

    @property
    def words(self) -> str:
        """The answers' tokens, without their numbers."""
        return " ".join(re.findall(r'class="word">([^<]*)<', self.answers))


def caller(address: str) -> httpx.AsyncClient:
    """One for all visitors; every one of them has a connection of its own."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE, limits=limits)


async def asking(client: httpx.AsyncClient) -> int:
    """The number that Gradio gives the event that asks."""
    config = (await client.get("/config")).json()
    (found,) = [each["id"] for each in config["dependencies"] if each["api_name"] == "ask"]
    return int(found)


@dataclass
class Visitor:
    """Asks one question about a scene of their own."""

    client: httpx.AsyncClient
    event: int
    scene: Scene | dict[str, Any]
    question: str
    methods: tuple[str, ...] = ("vanilla",)
    session: str = field(default_factory=lambda: secrets.token_hex(6))

    async def join(self) -> Outcome:
        """Get in line, or be refused."""
        from mgap.inspector.model_shelf import AUTO, NULL_IMAGE  # imports torch, which a process without visitors need not

        scene = plain(self.scene) if isinstance(self.scene, Scene) else self.scene
        data = ["pocket/llava", None, {"scene": scene}, None, self.question, list(self.methods), NULL_IMAGE, AUTO]
        data += [0.75, 0.5, 5, True, True, "beta"]
        words = {"data": data, "fn_index": self.event, "session_hash": self.session, "event_data": None, "trigger_id": None}
        answer = await self.client.post("/gradio_api/queue/join", json=words)
        return Outcome(answer.status_code, error="" if answer.is_success else answer.text)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """What the page hears; leaving the block is closing the page."""
        where = self.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.session})
        async with where as heard:

            async def messages() -> AsyncIterator[dict[str, Any]]:
                async for line in heard.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))

            yield messages()

    async def ask(self) -> Outcome:
        """To the end."""
        outcome = await self.join()
        if outcome.status == 200:
            async with self.listening() as messages:
                async for message in messages:
                    note(outcome, message)
        return outcome

    async def leave(self, after: str) -> Outcome:
        """Close the page at the first message of a kind."""
        outcome = await self.join()
        if outcome.status == 200:
            async with self.listening() as messages:
                async for message in messages:
                    note(outcome, message)
                    if message["msg"] == after:
                        break
        return outcome


def note(outcome: Outcome, message: dict[str, Any]) -> None:
    outcome.messages.append(message["msg"])
    if message["msg"] != "process_completed":
        return
    if message["success"]:
        outcome.answers = message["output"]["data"][0]
    else:
        outcome.error = message["output"]["error"]
