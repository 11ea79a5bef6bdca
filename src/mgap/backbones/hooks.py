"""Who else listens to a model: what must not be passed over by a forward that is cut short or captured."""

from __future__ import annotations

from torch import nn


def is_hooked(module: nn.Module) -> bool:
    """Whether anybody but transformers listens to what passes through the module and its parts."""
    hooks = (
        hook for part in module.modules() for kind in (part._forward_hooks, part._forward_pre_hooks) for hook in kind.values()
    )
    return any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)
