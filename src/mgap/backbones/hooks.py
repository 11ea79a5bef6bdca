"""Who else listens to a model: what must not be passed over by a forward that is cut short or captured."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn


def is_hooked(module: nn.Module, besides: Collection[Callable[..., Any]] = ()) -> bool:
    """Whether anybody but transformers, and these, listens to what passes through the module and its parts."""
    hooks = (
        hook for part in module.modules() for kind in (part._forward_hooks, part._forward_pre_hooks) for hook in kind.values()
    )
    return any(hook not in besides and not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)
