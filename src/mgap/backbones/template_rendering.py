"""Run a chat template: a program that comes with the checkpoint, and may be wrong, or have no end.

Jinja's sandbox keeps it from files and from Python, but not from running on: loops inside loops over 100,000 numbers each. So
it runs in a thread of its own, which is stopped after some seconds; an ordinary template takes a thousandth of one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from jinja2 import TemplateError

from mgap.errors import PromptError, one_line

SECONDS = 10.0


class _Stopped(BaseException):
    """Raised inside a template that has run too long; no template can catch it."""


def render_template(work: Callable[[], str], name: str) -> str:
    """The text that `work` renders by the template of the model `name`.

    Raises jinja2's TemplateError, which a template raises on purpose too, and PromptError for anything else that goes wrong.
    """
    rendered, failed = list[str](), list[BaseException]()

    def run() -> None:
        try:
            rendered.append(work())
        except BaseException as error:  # raised below, in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="mgap-template", daemon=True)
    thread.start()
    thread.join(SECONDS)
    for attempt in range(10):  # an exception that arrives inside a callback of Python's own is lost there
        if not thread.is_alive():
            break
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stopped))
        thread.join(0.01 * 2**attempt)
    if thread.is_alive() or (failed and isinstance(failed[0], _Stopped)):
        raise PromptError(f"{name}: its chat template was not done after {SECONDS:g} s; use a checkpoint with another one")
    if not failed:
        return rendered[0]
    if isinstance(failed[0], TemplateError):
        raise failed[0]
    if isinstance(failed[0], Exception):
        raise broken_template(name, failed[0]) from failed[0]
    raise failed[0]


def broken_template(name: str, error: Exception) -> PromptError:
    said = one_line(error) or type(error).__name__
    return PromptError(f"{name}: its chat template cannot be used ({said}); mend it, or set processor.chat_template")
