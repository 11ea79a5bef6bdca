"""Names that a short snippet takes for granted, as the pages on methods do; a page that makes them itself is not given them."""

from __future__ import annotations

import dis
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import mgap


def _load(_: dict[str, Any]) -> Any:
    return mgap.load("pocket/llava")


def _prior(names: dict[str, Any]) -> Any:
    return mgap.Subspace.fit(names["model"], mgap.default_prompts())


def _images(_: dict[str, Any]) -> list[str]:
    return [str(path) for path in sorted(Path("photos").iterdir()) for _ in range(2)]


def _prompts(_: dict[str, Any]) -> list[str]:
    return ["Is there a cup in the image?", "Please describe this image in detail."] * (len(_images({})) // 2)


GIVEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "mgap": lambda _: mgap,
    "model": _load,
    "prior": _prior,
    "images": _images,
    "prompts": _prompts,
    "my_model": lambda names: names["model"].backbone.model,
    "inputs": lambda names: names["model"].backbone.encode(["street.jpg"], ["Is there a dog in the image?"]),
}


def supply(code: CodeType, names: dict[str, Any]) -> None:
    """Put those of GIVEN that the snippet reads and nobody has made yet into its names."""
    for name, make in GIVEN.items():
        if name in code.co_names and name not in names and not _makes(code, name):
            names[name] = make(names)


def _makes(code: CodeType, name: str) -> bool:
    """Whether the snippet assigns the name before it is read: the first instruction that has it stores it."""
    first = next(step for step in dis.get_instructions(code) if step.argval == name)
    return first.opname.startswith(("STORE", "IMPORT"))
