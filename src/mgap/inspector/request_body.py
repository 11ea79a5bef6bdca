"""Request bodies on their way in: limits of size and time, and of how many may be open at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from mgap.inspector.page_routes import Refused

if TYPE_CHECKING:
    from anyio import CancelScope
    from starlette.types import Receive

SILENT_SECONDS = 15.0  # between two pieces of a body
BODY_SECONDS = 300.0  # from its first piece to its last
OPEN_BODIES = 256


class OpenBodies:
    """The bodies that are being read, the one that was silent longest first. Where there are too many, that one is ended."""

    def __init__(self) -> None:
        self._open: OrderedDict[RequestBody, None] = OrderedDict()

    def heard(self, body: RequestBody) -> None:
        """Something came, or the body is new."""
        self._open[body] = None
        self._open.move_to_end(body)
        while len(self._open) > OPEN_BODIES:
            silent, _ = self._open.popitem(last=False)
            silent.end(Refused(503, "Too many requests are being sent at once: send this one again.", connection="close"))

    def closed(self, body: RequestBody) -> None:
        self._open.pop(body, None)


class RequestBody:
    """One body. The page reads it by `receive`, which hangs up once `refused` is set: the guard answers in the page's place.

    with RequestBody(receive, most, bodies) as body:
        data = await body.read()
    """

    def __init__(self, receive: Receive, most: int, bodies: OpenBodies, takes: Callable[[int], None] = lambda _: None) -> None:
        """`most`: its largest size in bytes; `takes` is called with the size of every piece."""
        self._receive, self._most, self._bodies, self._takes = receive, most, bodies, takes
        self._left, self._is_whole, self._deadline = most, False, time.monotonic() + BODY_SECONDS
        self._waiting: CancelScope | None = None
        self.refused: Refused | None = None

    def __enter__(self) -> RequestBody:
        self._bodies.heard(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._bodies.closed(self)

    def end(self, why: Refused) -> None:
        """Refuse what is still to come."""
        self.refused = self.refused or why
        if self._waiting is not None:
            self._waiting.cancel()

    async def receive(self) -> MutableMapping[str, Any]:
        """The next piece, or word that the connection is closed."""
        if self._is_whole:  # the page only waits for its client to leave
            return await self._receive()
        message = None if self.refused else await self._next()
        if message is None:
            return {"type": "http.disconnect"}
        if message["type"] == "http.disconnect":
            return message
        size = len(message.get("body", b""))
        self._left -= size
        if self._left < 0:
            self.end(Refused(413, f"What was sent is larger than the {self._most:,} bytes that are taken here."))
            return {"type": "http.disconnect"}
        self._takes(size)
        self._is_whole = not message.get("more_body", False)
        if self._is_whole:
            self._bodies.closed(self)
        return message

    async def _next(self) -> MutableMapping[str, Any] | None:
        """What the client sends next; None if it takes too long, or is ended meanwhile."""
        import anyio

        seconds = min(SILENT_SECONDS, self._deadline - time.monotonic())
        if seconds > 0:
            with anyio.move_on_after(seconds) as self._waiting:
                message = await self._receive()
                self._bodies.heard(self)
                return message
        self.end(Refused(408, "The rest of what was to be sent did not come in time: send it again.", connection="close"))
        return None

    async def read(self) -> bytes:
        """All of it; raises Refused."""
        data = bytearray()
        while not self._is_whole:
            message = await self.receive()
            if self.refused is not None:
                raise self.refused
            if message["type"] == "http.disconnect":
                raise Refused(400, "The connection was closed before all was sent.")
            data += message.get("body", b"")
        return bytes(data)
