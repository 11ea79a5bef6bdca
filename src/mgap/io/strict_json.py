"""JSON that every reader takes: UTF-8 without lone surrogates, without NaN and without Infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from mgap.errors import NonFiniteStates
from mgap.io.regular_files import read_regular


def strict_json(value: Any, *, required: str = "", **how: Any) -> str:
    """Write plain values. A figure that is not finite becomes null; in a file that is read again, `required`, it is refused.

    `how` are options of `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        if required:
            raise NonFiniteStates(
                f"{required}: it has a number that is not finite and cannot be written; if the model made it, try dtype float32"
            ) from None
        return json.dumps(_finite(value), allow_nan=False, **how)


def parse_json(text: str | bytes) -> Any:
    """Read JSON from outside; raises ValueError on a lone surrogate too, which no file of ours could hold."""
    value = json.loads(text)
    has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
    if has_escapes and (why := lone_surrogate(value)):
        raise ValueError(why)
    return value


def load_json(path: str | PathLike[str]) -> Any:
    """The JSON of a regular file from outside, in UTF-8; raises as `parse_json` does, or OSError."""
    return parse_json(read_regular(path).decode())


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8. Escapes in JSON and YAML, and odd bytes on a command line, give others."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def lone_surrogate(value: Any) -> str:
    """Names the first text of a plain value that is no Unicode, keys included; "" if there is none."""
    bad = next((part for part in _parts(value) if isinstance(part, str) and not is_unicode(part)), None)
    return "" if bad is None else f"{bad!r:.60} is no Unicode text: it holds a lone surrogate"


def unwritable(value: Any) -> str:
    """Names the first part of a plain value that strict JSON cannot hold; "" if there is none."""
    numbers = (part for part in _parts(value) if isinstance(part, float) and not math.isfinite(part))
    return lone_surrogate(value) or next((f"{number} is no finite number" for number in numbers), "")


def _parts(value: Any) -> Iterator[Any]:
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, Mapping):
            pending.extend((*part.keys(), *part.values()))
        elif isinstance(part, list | tuple | set):
            pending.extend(part)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
