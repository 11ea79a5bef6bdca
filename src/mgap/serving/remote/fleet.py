"""Several servers of one model, asked as if they were one.

Each has a limited number of requests at once. One that fails is tried again by one request at a time, after longer and longer
pauses, until it answers; meanwhile the others have the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
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
        self.health = {server: ServerHealth() for server in self.servers}
        self.turns: asyncio.Queue[RemoteServer] = asyncio.Queue()
        for _ in range(options.parallel):
            for server in self.servers:
                self.turns.put_nowait(server)

    def connect(self, backbone: Backbone) -> Told:
        """What the servers are; raises if one does not answer, or is not like the first."""
        first, *others = self.run(self._connected(backbone))
        for server, told in zip(self.servers[1:], others, strict=True):
            if difference := told.difference(first):
                raise ModelError(
                    f"{server.address} is not like {self.servers[0].address}: {difference}; servers of one run must be alike"
                )
        for server in self.servers:
            server.told = first
        return first

    def ask(self, bodies: Sequence[Body]) -> list[ChatCompletion]:
        """The answers to all of them, in order. The first that is refused for good ends the others.

        Raises if a server was changed meanwhile.
        """
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
            answers = await asyncio.gather(*tasks)
            await asyncio.gather(*(self._require_same(server) for server in self.servers))
            return answers
        finally:
            for task in tasks:
                task.cancel()
            await _ended(tasks)

    async def _one(self, body: Body) -> ChatCompletion:
        from openai import APIConnectionError, APIStatusError

        refusals = 0
        while True:
            server = await self.turns.get()
            try:
                answer = await server.ask(await body())
            except APIStatusError as error:
                why = f"{server.address}: {reason(error)}"
                if error.status_code < 500 and error.status_code not in BUSY:
                    raise ModelError(why) from error
                refusals += 1
                self._failed(server)
            except APIConnectionError as error:
                why = f"{server.address}: {one_line(error.__cause__ or error)}"
                server.must_check = True
                self._failed(server)
            else:
                self._answered(server)
                return answer
            finally:
                self._give_back(server)
            most = self.options.retries
            if refusals > most or all(health.failures > most for health in self.health.values()):
                raise ModelError(
                    f"no server answers, after {most + 1} tries, at last {why}; see to the servers, and resume the run"
                )

    async def _require_same(self, server: RemoteServer) -> None:
        from openai import APIConnectionError, APIStatusError

        try:
            await server.require_same()
        except (APIConnectionError, APIStatusError):
            server.must_check = True  # before its next request

    def _failed(self, server: RemoteServer) -> None:
        """Leave it alone for a while, longer each time; failures of one moment count once."""
        health, now = self.health[server], time.monotonic()
        if now >= health.paused_until:
            health.failures += 1
            health.paused_until = now + min(FIRST_PAUSE * 2 ** (health.failures - 1), LONGEST_PAUSE)

    def _answered(self, server: RemoteServer) -> None:
        health = self.health[server]
        for _ in range(health.held_back):
            self.turns.put_nowait(server)
        self.health[server] = ServerHealth()

    def _give_back(self, server: RemoteServer) -> None:
        """Its turn comes again: of one that failed a single one, after its pause, and the others once it has answered."""
        health = self.health[server]
        if health.failures and health.held_back < self.options.parallel - 1:
            health.held_back += 1
        else:
            self.loop.call_later(max(health.paused_until - time.monotonic(), 0.0), self.turns.put_nowait, server)


@dataclass
class ServerHealth:
    """How a server has done lately."""

    failures: int = 0  # in a row
    paused_until: float = 0.0  # by the monotonic clock
    held_back: int = 0  # turns, until it answers


async def _ended(tasks: Sequence[Any] | set[Any]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
