"""Detect other hooks on a model, which a shortened or captured forward would skip."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn


def is_hooked(module: nn.Module, besides: Collection[Callable[..., Any]] = ()) -> bool:
    """Whether the module or its parts have forward hooks other than transformers' own and those in `besides`."""
    return any(hook not in besides for hook in hooks_in(module))


def hooks_in(module: nn.Module) -> Iterator[Callable[..., Any]]:
    """The forward hooks of a module and its parts, but for transformers' own."""
    for part in module.modules():
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values()):
            if not getattr(hook, "__module__", "").startswith("transformers."):
                yield hook
