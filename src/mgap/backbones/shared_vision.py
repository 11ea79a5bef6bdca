"""Equal pictures of a batch go through the vision tower once; what it says of them is handed to every row that shows them.

Benchmarks ask many questions about few pictures, and on a CPU, or with a large tower, the tower is most of a short answer.
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
    """What identifies pixels, whatever batch they come in; other salt, other bytes."""
    sha = hashlib.sha256(salt.encode())
    for tensor in tensors:
        sha.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.digest()


@contextmanager
def shared_pictures(backbone: Backbone) -> Iterator[None]:
    """Inside, the tower sees each picture of a batch once. Enter it after a method is on: methods look at what comes before.

    Batches of pictures of unlike sizes go through as they are.
    """
    waiting: list[Tensor] = []  # for the output of the call in hand: which of the pictures shown each one is, [pictures]

    def enter(_tower: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        waiting.clear()
        parts = backbone.pictures(backbone.tower_inputs(args, kwargs))
        order = _order([value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)], parts)
        if order is None:
            return args, kwargs
        waiting.append(order)
        firsts = [int((order == n).int().argmax()) for n in range(int(order.max()) + 1)]

        def fewer(value: Any) -> Any:
            return torch.cat([_share(value, parts, n) for n in firsts]) if isinstance(value, Tensor) else value

        return tuple(fewer(value) for value in args), {key: fewer(value) for key, value in kwargs.items()}

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
    """Which distinct picture each one is, in the order of first sight; None if there is nothing to share, or no telling how."""
    if len({part.stop - part.start for part in parts}) > 1 or any(len(t) not in (len(parts), parts[-1].stop) for t in tensors):
        return None
    marks = torch.stack([tensor.reshape(len(parts), -1).float().sum(1) for tensor in tensors], dim=1).tolist()
    firsts: list[int] = []
    order = []
    for n, mark in enumerate(marks):  # pixels stay where they are: few are alike by their sums, and those are compared
        alike = (k for k, first in enumerate(firsts) if marks[first] == mark and _is_same(tensors, parts, first, n))
        order.append(next(alike, len(firsts)))
        if order[-1] == len(firsts):
            firsts.append(n)
    return torch.tensor(order, device=tensors[0].device) if len(firsts) < len(order) else None


def _is_same(tensors: list[Tensor], parts: list[slice], one: int, other: int) -> bool:
    return all(torch.equal(_share(tensor, parts, one), _share(tensor, parts, other)) for tensor in tensors)


def _share(tensor: Tensor, parts: list[slice], n: int) -> Tensor:
    """One picture's rows of its pixels, or of what comes one a picture."""
    return tensor[parts[n]] if len(tensor) == parts[-1].stop else tensor[n : n + 1]


def _spread(value: Any, order: Tensor) -> Any:
    """What the tower says of the distinct pictures, for every picture: tensors [pictures * n, ...], also inside lists."""
    if isinstance(value, list | tuple):
        return type(value)(_spread(item, order) for item in value)
    if not isinstance(value, Tensor):
        return value
    count = int(order.max()) + 1
    if len(value) % count:
        raise ModelError(f"the vision tower gives {len(value)} rows for {count} pictures of one size: they cannot be shared")
    return value.unflatten(0, (count, -1))[order.to(value.device)].flatten(0, 1)
