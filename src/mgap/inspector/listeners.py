"""Drops queued events that nobody listens to. Gradio works on them all the same, and everybody else waits.

A page joins the queue first and listens then, by one stream for all events of its session. Gradio drops a session's events
when its stream is closed, but not when there never was one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mgap.inspector.page_routes import Refused

if TYPE_CHECKING:
    import gradio as gr

LISTEN_SECONDS = 10.0  # from joining the queue to listening
MAX_UNHEARD = 256  # events that nobody listens to yet


class Listeners:
    """The sessions of a page that listen, and those that joined the queue and do not listen yet."""

    def __init__(self, page: gr.Blocks) -> None:
        self._page = page
        self._open: Counter[str] = Counter()
        self._unheard: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    def check(self) -> None:
        """Refuse another event while too many are not listened to; Gradio keeps the messages of 2,000 sessions."""
        if len(self._unheard) >= MAX_UNHEARD:
            raise Refused(503, "Too many questions were asked that nobody listens to: try again in a few seconds.")

    def joined(self, session: str) -> None:
        """An event was queued."""
        if not self._open[session] and session not in self._unheard:
            self._unheard.add(session)
            self._expect(session)

    @contextmanager
    def listening(self, session: str) -> Iterator[None]:
        self._open[session] += 1
        self._unheard.discard(session)
        if session in self._timers:
            self._timers.pop(session).cancel()
        try:
            yield
        finally:
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
                self._expect(session)

    def _expect(self, session: str) -> None:
        """Drop the session if it does not listen in time."""
        if session in self._timers:
            self._timers[session].cancel()
        self._timers[session] = asyncio.get_running_loop().call_later(LISTEN_SECONDS, self._give_up, session)

    def _give_up(self, session: str) -> None:
        del self._timers[session]
        self._unheard.discard(session)
        task = asyncio.create_task(self._drop(session))
        self._dropping.add(task)  # else it might be collected before it is done
        task.add_done_callback(self._dropping.discard)

    async def _drop(self, session: str) -> None:
        await self._page._queue.clean_events(session_hash=session)  # as when its stream is closed
        self._forget(session)

    def _forget(self, session: str) -> None:
        """Let go of messages that nobody will read, unless something of the session goes on."""
        queue = self._page._queue
        running = [event for job in queue.active_jobs if job for event in job]
        waiting = [event for line in queue.event_queue_per_concurrency_id.values() for event in line.queue]
        if not any(event.session_hash == session and event.alive for event in (*running, *waiting)):
            queue.pending_messages_per_session.pop(session, None)
            queue.pending_event_ids_session.pop(session, None)
