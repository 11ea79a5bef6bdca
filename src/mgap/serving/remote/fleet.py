"""Several servers of one model, asked as if they were one.

Each has a limited number of requests at once; one that fails is left alone for a while, and its requests go elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mgap.errors import ModelError, one_line
from mgap.serving.remote.remote_options import RemoteOptions
from mgap.serving.remote.remote_server import RemoteServer, Told, reason

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from mgap.backbones.base import Backbone

Body = Callable[[], Awaitable[Mapping[str, Any]]]  # makes the body of a request when its turn comes
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds that a failing server is left alone, doubled each time
BUSY = (408, 409, 429)  # what a server says that cannot take a request now; so does everything from 500 up
T = TypeVar("T")


class Fleet:
    """Servers that are all the same, found when a run begins. Must be closed."""

    def __init__(self, options: RemoteOptions) -> None:
        self.options, self.loop = options, asyncio.new_event_loop()
        self.servers = [RemoteServer(address, options) for address in options.url]
        self.pauses = dict.fromkeys(self.servers, 0.0)
        self.paused_until = dict.fromkeys(self.servers, 0.0)
        self.turns: asyncio.Queue[RemoteServer] = asyncio.Queue()
        for _ in range(options.parallel):
            for server in self.servers:
                self.turns.put_nowait(server)

    def connect(self, backbone: Backbone) -> Told:
        """What the servers are; raises if one does not answer, or is not like the first."""
        first, *others = self.run(self._connected(backbone))
        for server, told in zip(self.servers[1:], others, strict=True):
            if difference := _difference(first, told):
                raise ModelError(
                    f"{server.address} is not like {self.servers[0].address}: {difference}; servers of one run must be the same"
                )
        for server in self.servers:
            server.told = first
        return first

    def ask(self, bodies: Sequence[Body]) -> list[ChatCompletion]:
        """The answers to all of them, in order. The first that is refused for good ends the others."""
        return self.run(self._all(bodies))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        """Give up what is under way, and close the connections."""
        for task in (tasks := asyncio.all_tasks(self.loop)):
            task.cancel()
        self.run(_ended(tasks))
        for server in self.servers:
            self.run(server.client.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

    async def _connected(self, backbone: Backbone) -> list[Told]:
        return await asyncio.gather(*(server.connect(backbone) for server in self.servers))

    async def _all(self, bodies: Sequence[Body]) -> list[ChatCompletion]:
        tasks = [asyncio.ensure_future(self._one(body)) for body in bodies]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await _ended(tasks)

    async def _one(self, body: Body) -> ChatCompletion:
        from openai import APIConnectionError, APIStatusError

        why = ""
        for _ in range(self.options.retries + 1):
            server = await self.turns.get()
            try:
                answer = await server.ask(await body())
            except APIStatusError as error:
                if error.status_code < 500 and error.status_code not in BUSY:
                    raise ModelError(f"{server.address}: {reason(error)}") from error
                why = f"{server.address}: {reason(error)}"
                self._pause(server)
            except APIConnectionError as error:
                why = f"{server.address}: {one_line(error.__cause__ or error)}"
                server.must_check = True
                self._pause(server)
            else:
                self.pauses[server] = 0.0
                return answer
            finally:
                self._give_back(server)
        raise ModelError(
            f"a request failed {self.options.retries + 1} times, at last at {why}; see to the servers, and resume the run"
        )

    def _pause(self, server: RemoteServer) -> None:
        """Leave a failing server alone for a while, longer each time; failures of one moment count once."""
        now = time.monotonic()
        if now >= self.paused_until[server]:
            self.pauses[server] = min(2 * self.pauses[server] or FIRST_PAUSE, LONGEST_PAUSE)
            self.paused_until[server] = now + self.pauses[server]

    def _give_back(self, server: RemoteServer) -> None:
        """Its turn comes again, after its pause."""
        left = self.paused_until[server] - time.monotonic()
        self.loop.call_later(max(left, 0.0), self.turns.put_nowait, server)


def _difference(one: Told, other: Told) -> str:
    """The first thing in which two servers differ, in words; empty if there is none."""
    for name in ("model", "is_vllm", "has_mgap", "adds_special_tokens"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            return f"{name} is {theirs} there and {mine} at the first"
    if (one.status is None) != (other.status is None):
        return "only one of them tells of MGAP"
    for name in ("settings", "exact", "model", "dtype", "versions"):
        mine, theirs = getattr(one.status, name, None), getattr(other.status, name, None)
        if mine != theirs:
            return f"{name} is {str(theirs)[:120]} there and {str(mine)[:120]} at the first"
    return ""


async def _ended(tasks: Sequence[Any] | set[Any]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
