"""Visitors of the inspector without a browser: each has its own session and asks over HTTP as the page does."""

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

PATIENCE = 120  # seconds allowed for an answer on a busy machine


@dataclass
class Outcome:
    """What a visitor got."""

    status: int  # of the request to join the queue
    answers: str = ""  # the page's final columns
    error: str = ""  # a sentence on the page
    messages: list[str] = field(default_factory=list)  # kinds of messages, in order

    @property
    def words(self) -> str:
        """The answers' tokens, without their numbers."""
        return " ".join(re.findall(r'class="word">([^<]*)<', self.answers))


def make_client(address: str) -> httpx.AsyncClient:
    """One client for all visitors; each of them gets its own connection."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE, limits=limits)


async def ask_event(client: httpx.AsyncClient) -> int:
    """Gradio's number of the event that asks."""
    config = (await client.get("/config")).json()
    (number,) = [each["id"] for each in config["dependencies"] if each["api_name"] == "ask"]
    return int(number)


@dataclass
class Visitor:
    """A visitor with one question about a scene."""

    client: httpx.AsyncClient
    event: int
    scene: Scene | dict[str, Any]
    question: str
    methods: tuple[str, ...] = ("vanilla",)
    session: str = field(default_factory=lambda: secrets.token_hex(6))

    async def join(self) -> Outcome:
        """Join the queue, or be refused."""
        from mgap.inspector.model_shelf import AUTO, NULL_IMAGE  # late: it imports torch

        scene = plain(self.scene) if isinstance(self.scene, Scene) else self.scene
        data = ["pocket/llava", None, {"scene": scene}, None, self.question, list(self.methods), NULL_IMAGE, AUTO]
        data += [0.75, 0.5, 5, True, True, "beta"]
        words = {"data": data, "fn_index": self.event, "session_hash": self.session, "event_data": None, "trigger_id": None}
        answer = await self.client.post("/gradio_api/queue/join", json=words)
        return Outcome(answer.status_code, error="" if answer.is_success else answer.text)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The page's messages; leaving the block closes the page."""
        async with self.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.session}) as response:

            async def messages() -> AsyncIterator[dict[str, Any]]:
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))

            yield messages()

    async def ask(self) -> Outcome:
        """Ask, and read messages to the end."""
        outcome = await self.join()
        if outcome.status == 200:
            async with self.listening() as messages:
                async for message in messages:
                    record(outcome, message)
        return outcome

    async def leave(self, after: str) -> Outcome:
        """Ask, and close the page at the first message of a kind."""
        outcome = await self.join()
        if outcome.status == 200:
            async with self.listening() as messages:
                async for message in messages:
                    record(outcome, message)
                    if message["msg"] == after:
                        break
        return outcome


def record(outcome: Outcome, message: dict[str, Any]) -> None:
    outcome.messages.append(message["msg"])
    if message["msg"] != "process_completed":
        return
    if message["success"]:
        outcome.answers = message["output"]["data"][0]
    else:
        outcome.error = message["output"]["error"]
