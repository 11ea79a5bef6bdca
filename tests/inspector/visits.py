"""Requests to the small page: over HTTP, to a process of its own, or to the same application in this process."""

import asyncio
import json
import signal
import sys
from contextlib import contextmanager, suppress
from subprocess import PIPE
from urllib.parse import unquote, urlencode

import httpx

from mgap.inspector.guard import Guard
from mgap.inspector.server import application, private_uploads
from tests import processes
from tests.inspector import small

PICTURE = {"meta": {"_type": "gradio.FileData"}, "orig_name": "a.png", "size": 1}
PASSWORD = "s\u00e9same"
OWN = "http://127.0.0.1:7860"
JSON, FORM, FILES = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
API = "/gradio_api"

# What the page asks for, one of each kind: the type of the body, and whether it comes before the password.
REQUESTS = {
    ("GET", "/"): ("", True),
    ("GET", "/assets/index.js"): ("", True),
    ("GET", "/static/index.js"): ("", True),
    ("GET", "/theme.css"): ("", True),
    ("GET", "/favicon.ico"): ("", True),
    ("GET", "/manifest.json"): ("", True),
    ("POST", "/login"): (FORM, True),
    ("GET", "/logout"): ("", False),
    ("GET", "/config"): ("", False),
    ("GET", f"{API}/info"): ("", False),
    ("GET", f"{API}/app_id"): ("", False),
    ("GET", f"{API}/heartbeat/one"): ("", False),
    ("GET", f"{API}/file=/tmp/a.png"): ("", False),
    ("GET", f"{API}/upload_progress"): ("", False),
    ("GET", f"{API}/queue/data"): ("", False),
    ("POST", f"{API}/queue/join"): (JSON, False),
    ("POST", f"{API}/upload"): (FILES, False),
    ("POST", f"{API}/run/upload"): (JSON, False),
    ("POST", f"{API}/cancel"): (JSON, False),
    ("POST", f"{API}/reset"): (JSON, False),
    ("POST", f"{API}/component_server"): (JSON, False),
    ("POST", f"{API}/component_server/"): (JSON, False),
}
REQUESTS |= {("HEAD", path): needs for (method, path), needs in REQUESTS.items() if method == "GET"}


class Small(httpx.Client):
    """A client of small.py, which runs in a process of its own."""

    def __init__(self, process):
        self.process = process
        self.uploads, address = (process.stdout.readline().strip() for _ in range(2))
        if not address:
            raise RuntimeError(process.communicate()[1])
        super().__init__(base_url=address, trust_env=False, timeout=30)

    def end(self, by=signal.SIGINT):
        """As Ctrl-C does; returns exit status, and what it printed then."""
        self.process.send_signal(by)
        self.close()
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@contextmanager
def served(*how, host="127.0.0.1", password="", max_bytes=1000):
    words = [sys.executable, small.__file__, host, password, str(max_bytes), *how]
    with processes.started(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process, Small(process) as client:
        yield client


def event(picture=None, question="What?", session="one"):
    return {"data": [picture, question], "fn_index": 0, "session_hash": session, "event_data": None, "trigger_id": 3}


def ask(client, picture=None, question="What?", session="one"):
    return client.post("/gradio_api/queue/join", json=event(picture, question, session))


def told(client, session="one"):
    """What a page hears of its question, up to the end, or up to the first sign that it takes long."""
    heard = ""
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            heard += line
            if '"heartbeat"' in line:
                break
    return heard


class Inside:
    """The application around the small page, asked without a network."""

    def __init__(self, uploads, **how):
        self.uploads = uploads
        self.reached, self.read = [], b""  # what the guard has passed on: requests, and the last one's body
        self.loop = asyncio.new_event_loop()
        self.app = self.loop.run_until_complete(self._build(**how))  # without a running loop, Gradio leaves open ones
        self.gradio = self.app.routes[-1].app

    async def _build(self, password=None, max_bytes=1000):
        app = application(small.build(), local=True, password=password, max_bytes=max_bytes)
        app.middleware_stack = app.build_middleware_stack()
        guard = app.middleware_stack
        while not isinstance(guard, Guard):
            guard = guard.app
        behind = guard.app

        async def note(scope, receive, send):
            self.reached.append((scope["method"], scope["path"]))
            self.read = b""

            async def read():
                message = await receive()
                self.read += message.get("body", b"")
                return message

            if scope["path"].endswith("/upload_progress"):  # it would wait for its upload, 3 seconds
                await send({"type": "http.response.start", "status": 200, "headers": []})
            else:
                await behind(scope, read, send)

        guard.app = note
        return app

    def request(self, *words, **named):
        return self.loop.run_until_complete(self.send(*words, **named))

    async def send(self, method, url, *pieces, stalls=False, client="127.0.0.1", root="", **headers):
        """Status and text of an answer. With `stalls`, nothing follows the last piece, though more was promised."""
        path, _, query = url.partition("?")
        named = {"host": "127.0.0.1:7860", **{name.replace("_", "-"): value for name, value in headers.items()}}
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
            "server": ("127.0.0.1", 7860), "client": (client, 1), "method": method, "root_path": root,
            "path": unquote(path), "raw_path": path.encode("utf-8", "replace"), "query_string": query.encode(),
            "headers": [(name.encode(), text.encode("utf-8", "replace")) for name, text in named.items() if text is not None],
        }  # fmt: skip
        left, said = list(pieces or [b""]), []

        async def receive():
            if left:
                piece = left.pop(0)
                return {"type": "http.request", "body": piece, "more_body": bool(left) or stalls}
            if stalls:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message):
            said.append(message)

        with suppress(Exception):  # Starlette has answered with 500 then
            await self.app(scope, receive, send)
        (status,) = [message["status"] for message in said if message["type"] == "http.response.start"]
        return status, b"".join(message.get("body", b"") for message in said).decode(errors="replace")

    def log_in(self, password=PASSWORD, **how):
        form = urlencode({"username": "anyone", "password": password}).encode()
        return self.request("POST", "/login", form, content_type=FORM, **how)

    def cookie(self):
        """Of somebody who has logged in."""
        self.gradio.tokens["token"] = "anyone"
        return f"access-token-unsecure-{self.gradio.cookie_id}=token"


@contextmanager
def inside(**how):
    with private_uploads() as uploads:
        asked = Inside(uploads, **how)
        try:
            yield asked
        finally:
            asked.loop.close()


def body_of(kind):
    """A body of a type that Gradio can read."""
    if kind == JSON:
        return json.dumps(event()).encode()
    if kind == FILES:
        return b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nx\r\n--b--\r\n'
    return b"username=anyone&password=x" if kind == FORM else b""
