"""The routes of Gradio that the page uses, and what each of them needs. Everything else is refused.

A newer Gradio may use another one: `make test-inspector` fails then, and the route gets its line here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

JSON, FORM, FILES = "json", "form", "files"  # what a request's body holds
READ, WRITE = ("GET", "HEAD"), ("POST",)
API = "/gradio_api"


class Refused(Exception):
    """A request that is answered with an HTTP status and a sentence, and goes no further."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class Route:
    """Requests with one of these methods whose whole path matches."""

    methods: tuple[str, ...]
    path: str  # a regular expression
    body: str = ""  # JSON, FORM or FILES
    is_open: bool = False  # without the password, and so to everyone


PAGE = Route(READ, "/", is_open=True)  # without the password, it shows the login form
LOGIN = Route(WRITE, "/login", FORM, is_open=True)
FILE = Route(READ, f"{API}/file=.+")
JOIN = Route(WRITE, f"{API}/queue/join", JSON)  # queues an event
LISTEN = Route(READ, f"{API}/queue/data")  # streams what comes of the events of a session
ROUTES = (
    PAGE,
    LOGIN,
    Route(READ, "/assets/.+", is_open=True),
    Route(READ, "/static/.+", is_open=True),
    Route(READ, r"/theme\.css", is_open=True),
    Route(READ, r"/favicon\.ico", is_open=True),
    Route(READ, r"/manifest\.json", is_open=True),
    Route(READ, "/logout"),
    Route(READ, "/config"),
    Route(READ, f"{API}/info"),
    Route(READ, f"{API}/app_id"),
    Route(READ, f"{API}/heartbeat/[^/]+"),
    Route(WRITE, f"{API}/upload", FILES),
    Route(READ, f"{API}/upload_progress"),
    FILE,
    JOIN,
    LISTEN,
    Route(WRITE, f"{API}/run/[^/]+", JSON),  # an event that is not queued
    Route(WRITE, f"{API}/cancel", JSON),
    Route(WRITE, f"{API}/reset", JSON),
    Route(WRITE, f"{API}/component_server/?", JSON),
)


def find_route(method: str, path: str) -> Route:
    """The route of a request; raises Refused if the page has none like it."""
    there = [route for route in ROUTES if re.fullmatch(route.path, path)]
    for route in there:
        if method in route.methods:
            return route
    if there:
        allowed = ", ".join(there[0].methods)
        raise Refused(405, f"The inspector takes {allowed} at this path, and no other method.", allow=allowed)
    raise Refused(404, "The inspector has nothing at this path: open it at /.")
