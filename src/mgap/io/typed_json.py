"""JSON back to the dataclasses that it was written from, by their type hints; what is of another type is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

BROKEN = (OSError, ValueError, TypeError, RecursionError)  # what reading a JSON file and `typed` raise on one that is damaged


def typed(kind: Any, data: Any, where: str = "it") -> Any:
    """A value of `kind`; raises a TypeError that says what stands where. Keys that a dataclass does not have are passed over.

    Reads dataclasses, text, numbers, true and false, lists, tuples, mappings by text, and what may be None.
    """
    if kind is Any:
        return data
    if is_dataclass(kind):
        return _dataclass(kind, data, where)
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is UnionType:
        if data is None and NoneType in inner:
            return None
        possible = [one for one in inner if one is not NoneType]
        for one in possible[:-1]:
            try:
                return typed(one, data, where)
            except TypeError:
                pass
        return typed(possible[-1], data, where)
    if origin in (dict, Mapping):
        _require(isinstance(data, Mapping), "keys and values", data, where)
        _require(all(isinstance(name, str) for name in data), "keys that are text, and values", data, where)
        return {name: typed(inner[1] if inner else Any, value, f"{where}.{name:.40}") for name, value in data.items()}
    if origin in (list, tuple, Sequence):
        _require(isinstance(data, list | tuple), "a list", data, where)
        pair = origin is tuple and inner[1:] != (...,)
        _require(not pair or len(inner) == len(data), f"a list of {len(inner)}", data, where)
        kinds = inner if pair else inner[:1] * len(data)
        found = [typed(one, value, f"{where}[{place}]") for place, (one, value) in enumerate(zip(kinds, data, strict=True))]
        return found if origin is list else tuple(found)
    _require(
        _is_plain(kind, data), {str: "text", bool: "true or false", int: "a whole number"}.get(kind, "a number"), data, where
    )
    return data


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    _require(isinstance(data, Mapping), "keys and values", data, where)
    hints, needed = _hints(kind)
    if missing := [name for name in needed if name not in data]:
        raise TypeError(f"{where} has no {missing[0]!r}")
    return kind(**{name: typed(hint, data[name], f"{where}.{name}") for name, hint in hints.items() if name in data})


@cache
def _hints(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Of a dataclass's fields: their types, and the names of those without a default."""
    known, hints = fields(kind), get_type_hints(kind)
    needed = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
    return {f.name: hints[f.name] for f in known}, needed


def _is_plain(kind: Any, data: Any) -> bool:
    if isinstance(data, bool) or kind in (bool, str):
        return isinstance(data, kind)
    if kind is float:
        return isinstance(data, float) or (isinstance(data, int) and abs(data) < 2**1023)
    return isinstance(data, kind)


def _require(is_right: bool, what: str, data: Any, where: str) -> None:
    if not is_right:
        raise TypeError(f"{where} must be {what}, not {data!r:.60}")
