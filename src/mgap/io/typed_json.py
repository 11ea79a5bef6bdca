"""Convert JSON back to the dataclasses that it was written from, checked against their type hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

BROKEN = (OSError, ValueError, TypeError, RecursionError)  # what reading a damaged JSON file and `typed` raise


def typed(kind: Any, data: Any, where: str = "it") -> Any:
    """Convert `data` to the type `kind`; raises a TypeError that names the wrong value and its place.

    Handles dataclasses, str, numbers, bool, lists, tuples, mappings with str keys, unions and None. Ignores keys that a
    dataclass does not have.
    """
    if kind is Any:
        return data
    if is_dataclass(kind):
        return _dataclass(kind, data, where)
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin is UnionType:
        if data is None and NoneType in args:
            return None
        *others, last = (arg for arg in args if arg is not NoneType)
        for arg in others:
            try:
                return typed(arg, data, where)
            except TypeError:
                pass
        return typed(last, data, where)
    if origin in (dict, Mapping):
        _require(isinstance(data, Mapping), "keys and values", data, where)
        _require(all(isinstance(name, str) for name in data), "keys that are text, and values", data, where)
        return {name: typed(args[1] if args else Any, value, f"{where}.{name:.40}") for name, value in data.items()}
    if origin in (list, tuple, Sequence):
        _require(isinstance(data, list | tuple), "a list", data, where)
        fixed_length = origin is tuple and args[1:] != (...,)
        _require(not fixed_length or len(args) == len(data), f"a list of {len(args)}", data, where)
        kinds = args if fixed_length else args[:1] * len(data)
        items = [typed(arg, value, f"{where}[{index}]") for index, (arg, value) in enumerate(zip(kinds, data, strict=True))]
        return items if origin is list else tuple(items)
    _require(
        _is_plain(kind, data), {str: "text", bool: "true or false", int: "a whole number"}.get(kind, "a number"), data, where
    )
    return data


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    _require(isinstance(data, Mapping), "keys and values", data, where)
    hints, required = _hints(kind)
    if missing := [name for name in required if name not in data]:
        raise TypeError(f"{where} has no {missing[0]!r}")
    return kind(**{name: typed(hint, data[name], f"{where}.{name}") for name, hint in hints.items() if name in data})


@cache
def _hints(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """A dataclass's field types, and the names of the fields without a default."""
    hints = get_type_hints(kind)
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return {f.name: hints[f.name] for f in fields(kind)}, required


def _is_plain(kind: Any, data: Any) -> bool:
    if isinstance(data, bool) or kind in (bool, str):
        return isinstance(data, kind)
    if kind is float:
        return isinstance(data, float) or (isinstance(data, int) and abs(data) < 2**1023)
    return isinstance(data, kind)


def _require(is_valid: bool, expected: str, data: Any, where: str) -> None:
    if not is_valid:
        raise TypeError(f"{where} must be {expected}, not {data!r:.60}")
