"""Detect other hooks on a model, which a shortened or captured forward would skip."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn


def is_hooked(module: nn.Module, besides: Collection[Callable[..., Any]] = ()) -> bool:
    """Whether the module or its parts have forward hooks other than transformers' own and those in `besides`."""
    hooks = (
        hook for part in module.modules() for kind in (part._forward_hooks, part._forward_pre_hooks) for hook in kind.values()
    )
    return any(hook not in besides and not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)
