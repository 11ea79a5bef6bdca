"""Middleware that passes on what the page itself sends, as `page_routes` lists it, and refuses everything else.

Gradio fetches any public URL on request (`/gradio_api/file=https://...`, or a "path" in a request's body); here it fetches
none. Such a "path" cannot name a file outside the upload folder either: Gradio checks that too, but only where it believes
that it has been launched.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mgap.inspector.listeners import Listeners
from mgap.inspector.page_routes import FILE, FILES, FORM, JOIN, LISTEN, LOGIN, PAGE, Refused, Route, find_route
from mgap.inspector.password_attempts import PasswordAttempts
from mgap.inspector.request_body import OpenBodies, RequestBody
from mgap.inspector.upload_folder import UploadFolder

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY_BYTES = 8_000_000  # of a request other than an upload
MAX_FORM_BYTES = 16_384  # of the login form
FRAME_BYTES = 65_536  # of an upload, besides its file
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
    """ASGI middleware around a page."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        local: bool,
        uploads: UploadFolder,
        max_bytes: int,
        listeners: Listeners,
        attempts: PasswordAttempts,
        is_logged_in: Callable[[Scope], bool],
    ) -> None:
        """With `local`, host names other than this machine's own are refused. `max_bytes` is of one uploaded file."""
        self.app, self.local, self.uploads, self.listeners = app, local, uploads, listeners
        self.attempts, self.is_logged_in, self.bodies = attempts, is_logged_in, OpenBodies()
        self.max_bytes = {FILES: max_bytes + FRAME_BYTES, FORM: MAX_FORM_BYTES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import JSONResponse

        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page has no websocket
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = GuardedAnswer(send)
        try:
            route = self._check(scope)
            if route.body:
                most = self.max_bytes.get(route.body, MAX_BODY_BYTES)
                takes = self.uploads.grow if route.body == FILES else lambda _: None
                with RequestBody(receive, most, self.bodies, takes) as body:
                    await self._pass_on_body(route, scope, body, answer)
            elif route is LISTEN:
                with self.listeners.listening(_session(scope)):
                    await self.app(scope, receive, answer.send)
            else:
                await self.app(scope, receive, answer.send)
        except Refused as refused:
            await JSONResponse({"detail": refused.sentence}, refused.status, refused.headers)(scope, receive, answer.send)

    def _check(self, scope: Scope) -> Route:
        """The request's route; raises Refused by what its head says."""
        from starlette.datastructures import Headers

        headers = Headers(scope=scope)
        if self.local:
            check_host(headers)
        path = _path(scope)
        route = find_route(scope["method"], path)
        if route is FILE and _is_address(path.partition("file=")[2]):
            raise Refused(403, "This inspector fetches nothing from other hosts.")
        check_site(headers, route)
        if not (route.is_open or self.is_logged_in(scope)):
            raise Refused(401, "This needs the password: open the page at / and log in.")
        return route

    async def _pass_on_body(self, route: Route, scope: Scope, body: RequestBody, answer: GuardedAnswer) -> None:
        if route.body == FILES:
            await self._pass_on_upload(scope, body, answer)
            return
        data = await body.read()
        if route is LOGIN:
            address = (scope.get("client") or ("",))[0]
            if not self.is_logged_in(scope):
                await self.attempts.wait_for_turn(address)
            await self.app(scope, _replay(data, body), answer.send)
            if answer.status == 200:
                self.attempts.was_right(address)
            return
        sent = check_json(data, self.uploads.path)
        if route is JOIN:
            self.listeners.check()
        await self.app(scope, _replay(data, body), answer.send)
        if route is JOIN and answer.status == 200:
            self.listeners.joined(sent["session_hash"])

    async def _pass_on_upload(self, scope: Scope, body: RequestBody, answer: GuardedAnswer) -> None:
        """Piece by piece. Where a limit is passed, Gradio hears that the client has left, and is not heard itself."""

        async def send(message: MutableMapping[str, Any]) -> None:
            if body.refused is None or answer.status:
                await answer.send(message)

        self.uploads.make_room()
        try:
            await self.app(scope, body.receive, send)
        except Exception:  # Gradio's, at a client that it believes gone; ours is raised below
            if body.refused is None:
                raise
        if body.refused is not None and not answer.status:
            raise body.refused


class GuardedAnswer:
    """An answer on its way out: adds the policy, and keeps the status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"content-security-policy", POLICY.encode())]
        await self._send(message)


def check_host(headers: Headers) -> None:
    """Refuse DNS rebinding: a site could point its name at this machine and so read the page in a browser here."""
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        raise Refused(
            403, f"This inspector answers to this machine's own names only, such as 127.0.0.1, not to {name[:100]!r}."
        )


def check_site(headers: Headers, route: Route) -> None:
    """Refuse what a page of another site lets a browser send. It may lead to the page, and no further.

    Browsers name the site in Origin, at least where something is sent, and in Sec-Fetch-Site. Other programs, gradio_client
    among them, send neither, and are let in: nobody can be made to run one by opening a page.
    """
    own = {name.strip().lower() for header in ("host", "x-forwarded-host") for name in headers.get(header, "").split(",")}
    origins = {re.sub("^https?://", "", origin.lower()) for origin in headers.getlist("origin")}
    is_opened = route is PAGE and headers.get("sec-fetch-mode") == "navigate"
    is_own = is_opened or headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    if not (is_own and origins <= own - {""}):
        raise Refused(403, "This was sent by a page of another site: open the inspector by its own address, and use it there.")


def check_json(body: bytes, uploads: Path) -> dict[str, Any]:
    """Read a body, and refuse files in it that were not uploaded."""
    try:
        sent = json.loads(body)
    except RecursionError:
        raise Refused(400, "What was sent is nested too deeply.") from None
    except ValueError:
        raise Refused(400, "What was sent is no JSON.") from None
    if not isinstance(sent, dict):
        raise Refused(400, "What was sent is no JSON object.")
    pending: list[Any] = [sent]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if _is_address(value.get("path")) or (_is_file(value) and not _is_in(uploads, value["path"])):
                raise Refused(403, "Only files that were dropped into the page are read, and another was named.")
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return sent


def _path(scope: Scope) -> str:
    """The path below the root that the server was given, as Starlette reads it."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _session(scope: Scope) -> str:
    from starlette.datastructures import QueryParams

    return QueryParams(scope["query_string"]).get("session_hash", "")


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


def _replay(data: bytes, body: RequestBody) -> Receive:
    """A receive function that delivers the body once more."""
    left = [{"type": "http.request", "body": data, "more_body": False}]

    async def read() -> MutableMapping[str, Any]:
        return left.pop() if left else await body.receive()

    return read
