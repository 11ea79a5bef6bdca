"""Capture what the head reads: `hs[L]`, after the final norm. The hook is at the head, so no layer's states are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mgap.backbones.base import Backbone


def on_head_input(backbone: Backbone, read: Callable[[Tensor], None]) -> RemovableHandle:
    """Until the handle is removed, every call of the head first passes its input [B, T, d], detached, to `read`."""

    def pass_input(_head: nn.Module, args: tuple[Tensor, ...]) -> None:
        read(args[0].detach())

    handle: RemovableHandle = backbone.head_module.register_forward_pre_hook(pass_input)
    return handle


@contextmanager
def catch_states(backbone: Backbone, *, last: bool = True) -> Iterator[list[Tensor]]:
    """Collect the input of every head call inside the block, in the model's dtype: the last column [B, d], or all [B, T, d]."""
    caught: list[Tensor] = []
    handle = on_head_input(backbone, lambda h: caught.append(h[:, -1] if last else h))
    try:
        yield caught
    finally:
        handle.remove()
