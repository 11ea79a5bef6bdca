"""Run equal pictures of a batch through the vision tower once, and copy the output to every row that shows them.

Benchmarks ask many questions about few pictures. On a CPU, or with a large tower, the tower dominates a short answer's time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.errors import ModelError


def digest(*tensors: Tensor, salt: str = "") -> bytes:
    """A hash of pixels that does not depend on their batch; `salt` separates uses."""
    sha = hashlib.sha256(salt.encode())
    for tensor in tensors:
        sha.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.digest()


@contextmanager
def shared_pictures(backbone: Backbone) -> Iterator[None]:
    """Inside the block, the tower sees each picture of a batch once. Attach methods first: they read the inputs before this.

    Batches with pictures of different sizes pass unchanged.
    """
    waiting: list[Tensor] = []  # [pictures]: the distinct picture of each, until the current call returns

    def enter(_tower: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        waiting.clear()
        parts = backbone.pictures(backbone.tower_inputs(args, kwargs))
        order = _order([value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)], parts)
        if order is None:
            return args, kwargs
        waiting.append(order)
        firsts = [int((order == n).int().argmax()) for n in range(int(order.max()) + 1)]

        def distinct(value: Any) -> Any:
            return torch.cat([_rows_of(value, parts, n) for n in firsts]) if isinstance(value, Tensor) else value

        return tuple(distinct(value) for value in args), {key: distinct(value) for key, value in kwargs.items()}

    def leave(_tower: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if waiting:
            order = waiting.pop()
            for key, value in output.items():
                output[key] = _spread(value, order)
        return output

    handles = [
        backbone.vision.register_forward_pre_hook(enter, with_kwargs=True),
        backbone.vision.register_forward_hook(leave),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _order(tensors: list[Tensor], parts: list[slice]) -> Tensor | None:
    """The distinct picture that each one is, numbered by first occurrence; None if nothing can be shared."""
    if len({part.stop - part.start for part in parts}) > 1 or any(len(t) not in (len(parts), parts[-1].stop) for t in tensors):
        return None
    sums = torch.stack([tensor.reshape(len(parts), -1).float().sum(1) for tensor in tensors], dim=1).tolist()
    firsts: list[int] = []
    order = []
    for n, own in enumerate(sums):  # compares pixels on the device, and only where the sums agree
        equal = (k for k, first in enumerate(firsts) if sums[first] == own and _is_same(tensors, parts, first, n))
        order.append(next(equal, len(firsts)))
        if order[-1] == len(firsts):
            firsts.append(n)
    return torch.tensor(order, device=tensors[0].device) if len(firsts) < len(order) else None


def _is_same(tensors: list[Tensor], parts: list[slice], one: int, other: int) -> bool:
    return all(torch.equal(_rows_of(tensor, parts, one), _rows_of(tensor, parts, other)) for tensor in tensors)


def _rows_of(tensor: Tensor, parts: list[slice], n: int) -> Tensor:
    """One picture's rows of the pixels, or of a tensor with one row per picture."""
    return tensor[parts[n]] if len(tensor) == parts[-1].stop else tensor[n : n + 1]


def _spread(value: Any, order: Tensor) -> Any:
    """Expand the tower's output from distinct pictures to all pictures: tensors [pictures * n, ...], also inside lists."""
    if isinstance(value, list | tuple):
        return type(value)(_spread(item, order) for item in value)
    if not isinstance(value, Tensor):
        return value
    count = int(order.max()) + 1
    if len(value) % count:
        raise ModelError(f"the vision tower gives {len(value)} rows for {count} pictures of one size: they cannot be shared")
    return value.unflatten(0, (count, -1))[order.to(value.device)].flatten(0, 1)
