"""Serves the page on a port, by default for this machine only; optionally with a password. Nothing is sent out.

with private_uploads():                           # before Gradio is imported
    with bind("127.0.0.1", 7860) as listener:     # a taken port is refused before models are loaded
        serve(build_page(...), listener, ...)     # until Ctrl-C
"""

from __future__ import annotations

import errno
import hmac
import os
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mgap.errors import MissingExtra, SettingError
from mgap.inspector.guard import Guard, is_loopback
from mgap.inspector.listeners import Listeners
from mgap.inspector.password_attempts import PasswordAttempts
from mgap.inspector.upload_folder import FILES_KEPT, LEAST_BYTES, UploadFolder

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI
    from gradio.routes import App
    from starlette.types import Scope

ENVIRONMENT = {
    "GRADIO_TEMP_DIR": "",  # for uploads; set below
    "GRADIO_ANALYTICS_ENABLED": "False",  # version check and component statistics
    "HF_HUB_DISABLE_TELEMETRY": "True",
}
PASSWORD = "MGAP_INSPECT_PASSWORD"  # environment variable
QUEUE_SIZE, CONCURRENCY = 32, 4  # events that may wait; default limit of those of one kind that run at a time
SESSIONS = 100  # whose state is kept
UPLOAD_SECONDS = 3600  # how long an uploaded file is kept
SHUTDOWN_SECONDS = 1  # how long open connections have at the end
LOGIN_MESSAGE = (
    "Any user name will do. The password is the one that the inspector was started with. After a wrong one, the next takes "
    "longer."
)


def require_gradio(purpose: str) -> None:
    """Refuse to start without Gradio; quick, because nothing is imported."""
    if find_spec("gradio") is None:
        raise MissingExtra("gradio", "inspector", purpose)


@contextmanager
def private_uploads() -> Iterator[Path]:
    """A temporary folder for uploads that only this user can read. Gradio is told to send nothing out."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    with tempfile.TemporaryDirectory(prefix="mgap-inspect-", ignore_cleanup_errors=True) as folder:
        os.environ.update({**ENVIRONMENT, "GRADIO_TEMP_DIR": folder})
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def exposure(host: str, has_password: bool) -> str:
    """A warning about who can reach the page; empty if only this machine can."""
    if is_loopback(host):
        return ""
    who = "everyone on the networks of this machine" if host in ("0.0.0.0", "::") else f"everyone who can reach {host}"
    travels = "pictures, questions and answers travel unencrypted"
    if has_password:
        return f"{who} can open the inspector with its password, and {travels}, as does the password."
    return (
        f"NO PASSWORD IS SET: {who} can open the inspector, use its models and see the runs in its folder, and {travels}. "
        f"Set {PASSWORD}, or leave out --host {host}."
    )


def bind(host: str, port: int) -> socket.socket:
    """Listen on a port, 0 being any free one; raises SettingError if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise SettingError(f"--host {host}: no address of that name; give one of this machine, such as 127.0.0.1") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        reasons = {
            errno.EADDRINUSE: f"port {port} is taken, perhaps by another inspector: choose another with --port, or --port 0",
            errno.EACCES: f"port {port} is not for this user: choose one above 1023 with --port, or --port 0",
            errno.EADDRNOTAVAIL: f"--host {host} is no address of this machine: give one of its own, such as 127.0.0.1",
        }
        raise SettingError(reasons.get(error.errno or 0, f"cannot listen on {host}, port {port} ({error.strerror})")) from error
    return listener


def address_of(host: str, listener: socket.socket) -> str:
    """The URL for a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host.strip("[]"), host)
    return f"http://{f'[{name}]' if ':' in name and not name.startswith('[') else name}:{listener.getsockname()[1]}"


def application(page: gr.Blocks, *, local: bool, password: str | None, max_bytes: int, **look: Any) -> FastAPI:
    """The page as a web application. `look` has Gradio's theme, css, js and head."""
    import gradio
    from fastapi import FastAPI
    from gradio.utils import get_upload_folder

    page.state_session_capacity = SESSIONS
    page.delete_cache = page.delete_cache or (UPLOAD_SECONDS // 6, UPLOAD_SECONDS)
    page.queue(max_size=QUEUE_SIZE, default_concurrency_limit=CONCURRENCY, api_open=False)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gradio.mount_gradio_app(
        app,
        page,
        "/",
        auth=None if password is None else _password_check(password),
        auth_message=None if password is None else LOGIN_MESSAGE,
        max_file_size=max_bytes,
        footer_links=["settings"],
        run_history=False,
        allowed_paths=[],
        show_error=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        app_kwargs={"openapi_url": None},
        **look,
    )
    page.has_launched = True  # else Gradio lets a page pass off any file of this machine as an upload
    app.add_middleware(
        Guard,
        local=local,
        uploads=UploadFolder(Path(get_upload_folder()), FILES_KEPT * max(max_bytes, LEAST_BYTES)),
        max_bytes=max_bytes,
        listeners=Listeners(page),
        attempts=PasswordAttempts(),
        is_logged_in=_login_check(gradio_app_of(app)) if password is not None else lambda _: True,
    )
    return app


def gradio_app_of(app: FastAPI) -> App:
    """Gradio's own application, which is mounted in ours."""
    mounted: App = app.routes[-1].app  # type: ignore[attr-defined]
    return mounted


def _password_check(password: str) -> Callable[[str, str], bool]:
    def is_correct(_: str, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), password.encode("utf-8", "surrogatepass"))

    return is_correct


def _login_check(mounted: App) -> Callable[[Scope], bool]:
    """Whether a request comes from somebody who has logged in. Gradio asks on most of its routes, but not on all."""
    from starlette.requests import HTTPConnection

    names = [f"access-token-{kind}{mounted.cookie_id}" for kind in ("", "unsecure-")]

    def is_logged_in(scope: Scope) -> bool:
        cookies = HTTPConnection(scope).cookies
        return any(cookies.get(name) in mounted.tokens for name in names)

    return is_logged_in


def serve(
    page: gr.Blocks,
    listener: socket.socket,
    *,
    host: str,
    password: str | None,
    max_bytes: int,
    open_browser: bool,
    ready: Callable[[str], None],
    **look: Any,
) -> None:
    """Serve until Ctrl-C (unless ignored) or SIGTERM. `ready` is called with the URL once the page can be opened."""
    import uvicorn

    app = application(page, local=is_loopback(host), password=password, max_bytes=max_bytes, **look)
    address = address_of(host, listener)
    is_interrupt_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready(address)
            if open_browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if sig != signal.SIGINT or not is_interrupt_ignored:  # uvicorn would handle it again
                super().handle_exit(sig, frame)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            gradio_app_of(app).stop_event.set()  # ends the event streams
            for connection in list(self.server_state.connections):
                connection.transport.close()  # else a page would show a cancelled request
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app, log_level="critical", access_log=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS, server_header=False
    )
    is_ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        with suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
            Server(config).run(sockets=[listener])
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(status: int) -> None:
    """End the process even if a thread is still generating an answer; returns if none is."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _interrupt(*_: object) -> None:
    """Treat SIGTERM as Ctrl-C, so that everything is cleaned up."""
    raise KeyboardInterrupt
