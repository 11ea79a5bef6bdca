"""What is refused before Gradio sees it: other sites' requests, and whatever is named as a file but was not dropped.

Gradio fetches an address for whoever asks (`/gradio_api/file=https://...`, or a "path" in what a page sends), from public hosts
only; here it fetches none. Nor does such a "path" reach a file outside the folder of uploads: Gradio checks that too, but only
where it believes that it has been launched.
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

MOST = 8_000_000  # bytes of what a page sends besides files
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; form-action 'self'; "
    "object-src 'none'; base-uri 'self'"
)  # a page asks no other host for anything; Gradio's own scripts stand inline and build functions


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    name = host.strip("[]")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """Around a page's application. `local`: it is for this machine, so that a name that leads here by a trick is refused."""

    def __init__(self, app: ASGIApp, *, local: bool, uploads: Path) -> None:
        self.app, self.local, self.uploads = app, local, uploads.resolve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = _refuse_host(scope) if self.local else None
        refused = refused or _refuse_path(scope["path"])
        if refused is None and scope["method"] == "POST" and not scope["path"].rstrip("/").endswith("/upload"):
            body = await _read(receive)
            refused, receive = _refuse_body(body, self.uploads), _again(body or b"", receive)
        if refused is not None:
            await PlainTextResponse(refused[1], refused[0])(scope, receive, send)
            return
        await self.app(scope, receive, _with_policy(send))


Refused = tuple[int, str]  # HTTP status, and a sentence


def _refuse_host(scope: Scope) -> Refused | None:
    """Another site could give its name this machine's address, and so read the page from a browser here (DNS rebinding)."""
    host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if is_loopback(name):
        return None
    return 403, f"This inspector answers to this machine's own names only, such as 127.0.0.1, not to {name[:100]!r}.\n"


def _refuse_path(path: str) -> Refused | None:
    _, is_file, wanted = path.partition("file=")
    if "/proxy=" in path or (is_file and _is_address(wanted)):
        return 403, "This inspector fetches nothing from other hosts.\n"
    return None


def _refuse_body(body: bytes | None, uploads: Path) -> Refused | None:
    if body is None:
        return 413, f"What was sent is larger than the {MOST:,} bytes that a page may send besides files.\n"
    try:
        pending: list[Any] = [json.loads(body)] if body else []
    except RecursionError:
        return 400, "What was sent is nested too deeply.\n"
    except ValueError:
        return None  # no JSON: Gradio has its own refusals
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if _is_address(each.get("path")) or (_is_file(each) and not _is_in(uploads, each["path"])):
                return 403, "Only files that were dropped into the page are read, and another was named.\n"
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return None


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"\s*[a-z][a-z0-9+.-]+:/", value, re.IGNORECASE) is not None


def _is_file(each: dict[str, Any]) -> bool:
    """What Gradio takes for a file, and more."""
    return isinstance(each.get("path"), str) and isinstance(each.get("meta"), dict)


def _is_in(folder: Path, path: str) -> bool:
    try:
        return folder in Path(path).resolve().parents
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, a circle of links
        return False


async def _read(receive: Receive) -> bytes | None:
    """All of a request's body; None if it is too large."""
    body, is_more = bytearray(), True
    while is_more:
        message = await receive()
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
        if len(body) > MOST:
            return None
    return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read, to be read once more."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> MutableMapping[str, Any]:
        return left.pop() if left else await receive()

    return read


def _with_policy(send: Send) -> Send:
    async def say(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"content-security-policy", POLICY.encode())]
        await send(message)

    return say
