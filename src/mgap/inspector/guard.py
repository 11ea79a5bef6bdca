"""Middleware that refuses requests from other sites, and files that were not uploaded, before Gradio sees them.

Gradio fetches any public URL on request (`/gradio_api/file=https://...`, or a "path" in a request's body); here it fetches
none. Such a "path" cannot name a file outside the upload folder either: Gradio checks that too, but only where it believes
that it has been launched.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY_BYTES = 8_000_000  # of a request other than an upload
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; form-action 'self'; "
    "object-src 'none'; base-uri 'self'"
)  # no other host is contacted; Gradio's own scripts are inline and build functions


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    name = host.strip("[]")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware around a page. With `local`, host names other than this machine's own are refused."""

    def __init__(self, app: ASGIApp, *, local: bool, uploads: Path) -> None:
        self.app, self.local, self.uploads = app, local, uploads.resolve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = _refuse_host(scope) if self.local else None
        refusal = refusal or _refuse_path(scope["path"])
        if refusal is None and scope["method"] == "POST" and not scope["path"].rstrip("/").endswith("/upload"):
            body = await _read_body(receive)
            refusal, receive = _refuse_body(body, self.uploads), _replay_body(body or b"", receive)
        if refusal is not None:
            await PlainTextResponse(refusal[1], refusal[0])(scope, receive, send)
            return
        await self.app(scope, receive, _with_policy(send))


Refusal = tuple[int, str]  # HTTP status, and a sentence


def _refuse_host(scope: Scope) -> Refusal | None:
    """Refuse DNS rebinding: a site could point its name at this machine and so read the page in a browser here."""
    host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if is_loopback(name):
        return None
    return 403, f"This inspector answers to this machine's own names only, such as 127.0.0.1, not to {name[:100]!r}.\n"


def _refuse_path(path: str) -> Refusal | None:
    _, is_file, target = path.partition("file=")
    if "/proxy=" in path or (is_file and _is_address(target)):
        return 403, "This inspector fetches nothing from other hosts.\n"
    return None


def _refuse_body(body: bytes | None, uploads: Path) -> Refusal | None:
    if body is None:
        return 413, f"What was sent is larger than the {MAX_BODY_BYTES:,} bytes that a page may send besides files.\n"
    try:
        pending: list[Any] = [json.loads(body)] if body else []
    except RecursionError:
        return 400, "What was sent is nested too deeply.\n"
    except ValueError:
        return None  # not JSON: Gradio has its own refusals
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if _is_address(value.get("path")) or (_is_file(value) and not _is_in(uploads, value["path"])):
                return 403, "Only files that were dropped into the page are read, and another was named.\n"
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return None


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"\s*[a-z][a-z0-9+.-]+:/", value, re.IGNORECASE) is not None


def _is_file(value: dict[str, Any]) -> bool:
    """Whether Gradio could take it for a file; broader than its own test."""
    return isinstance(value.get("path"), str) and isinstance(value.get("meta"), dict)


def _is_in(folder: Path, path: str) -> bool:
    try:
        return folder in Path(path).resolve().parents
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, a loop of links
        return False


async def _read_body(receive: Receive) -> bytes | None:
    """A request's whole body; None if it is too large."""
    body, is_more = bytearray(), True
    while is_more:
        message = await receive()
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """A receive function that delivers the body once more."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> MutableMapping[str, Any]:
        return left.pop() if left else await receive()

    return read


def _with_policy(send: Send) -> Send:
    async def send_with_policy(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"content-security-policy", POLICY.encode())]
        await send(message)

    return send_with_policy
