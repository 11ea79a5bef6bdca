"""Run a chat template: a program that comes with the checkpoint, and may be wrong, or have no end.

Jinja's sandbox keeps it from files and from Python, but not from running on: loops inside loops over 100,000 numbers each. So
it runs in a thread of its own, which is stopped after some seconds; an ordinary template takes a thousandth of one.
"""

from __future__ import annotations

import ctypes
import json
import re
import threading
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError

from mgap.errors import PromptError, SettingError, one_line

SECONDS = 10.0
QUESTION, IMAGE = "{question}", "{image}"  # in a stated template
_ONE_TURN = "{% if messages | length > 1 %}{{ raise_exception('a stated template has one turn') }}{% endif %}"
_EACH = "{%% for part in messages[0]['content'] %%}{%% if part['type'] == '%s' %%}{{ %s }}{%% endif %%}{%% endfor %%}"


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def find_template(processor: Any, fallback: str | None, name: str) -> str:
    """The chat template of a model's processor or tokenizer, or its family's; refuses a model that has none."""
    template = getattr(processor, "chat_template", None) or processor.tokenizer.chat_template or fallback
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str):
        raise PromptError(
            f"{name} has no chat template, and nothing else says how its prompts are written: state one as its paper or card "
            f"has it, such as template='USER: {IMAGE}\\n{QUESTION} ASSISTANT:' (--template on the command line)"
        )
    return template


def check_stated(stated: str) -> str:
    """The template itself; refuses one without a single place for the question."""
    if not isinstance(stated, str) or stated.count(QUESTION) != 1:
        raise SettingError(
            f"template={stated!r:.80} must have {QUESTION} in one place, where the prompt goes, such as "
            f"'USER: {IMAGE}\\n{QUESTION} ASSISTANT:'"
        )
    return stated


def chat_template(stated: str, placeholder: str | None, name: str) -> str:
    """The chat template that a text with {question}, and {image} where the picture goes, stands for.

    `placeholder` is what the model `name` has in the picture's place, and may be written instead of {image}; None: its pictures
    stand before every prompt. Without a picture, the white space behind {image} goes with it.
    """
    check_stated(stated)
    if placeholder is not None:
        stated = stated.replace(placeholder, IMAGE)
    if stated.count(IMAGE) != (placeholder is not None):
        wants = f"must have {IMAGE} in one place, where the picture goes" if placeholder else f"has {IMAGE}: leave it out"
        why = "" if placeholder else ", which stands before every prompt"
        raise SettingError(f"template={stated!r:.80} of {name} {wants}{why}")
    written = [_ONE_TURN]
    for piece in re.split(r"(\{question\}|\{image\}\s*)", stated):
        if piece == QUESTION:
            written.append(_EACH % ("text", "part['text']"))
        elif piece.startswith(IMAGE):
            written.append(_EACH % ("image", _literal(piece.replace(IMAGE, placeholder or ""))))
        elif piece:
            written.append(f"{{{{ {_literal(piece)} }}}}")
    return "".join(written)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


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
