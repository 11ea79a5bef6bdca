"""A proxy before a real server, which can be told to break: for tests of what a client does then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

DROP = "drop"  # close the connection without a word
Fault = str | int | None  # DROP, an HTTP status, or None: pass on


class FaultyProxy:
    """Passes requests on to `upstream`; `fault` tells for the number of each question what becomes of it."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.fault = upstream, (lambda _number: None)
        self.questions = self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                with proxy._asked() as number:
                    self._pass_on(proxy.fault(number))

            def _pass_on(self, fault: Fault) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if fault == DROP:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, data = (
                    (fault, b'{"message": "broken on purpose"}') if fault else proxy._ask(self.command, self.path, body)
                )
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    fault: Callable[[int], Fault]

    def shut(self) -> None:
        """Listen no more; requests that are under way are answered."""
        self._server.socket.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextmanager
    def _asked(self) -> Iterator[int]:
        with self._lock:
            number, self.questions = self.questions, self.questions + 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield number
        finally:
            with self._lock:
                self.at_once -= 1

    def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        answer = httpx.request(
            method, self.upstream + path, content=body, headers={"Content-Type": "application/json"}, timeout=120
        )
        return answer.status_code, answer.content
