"""Which rows of a forward are the caller's, so that methods at the head can stand on top of one with a second branch.

A second branch adds rows of its own behind the main ones. What acts at the head then acts on the main rows only: the contrast
takes away what the plain model says to the branch's inputs (methods/mgap.md, section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


class RowSplit:
    """The rows of one model's forward that is under way."""

    main: int | None = None  # so many rows are the caller's, the rest is a branch's; None: all
    is_paused = False  # a forward that is no decoding, such as measuring the head: no branch is to be added

    @contextmanager
    def paused(self) -> Iterator[None]:
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before


_row_splits: WeakKeyDictionary[nn.Module, RowSplit] = WeakKeyDictionary()


def row_split_of(model: nn.Module) -> RowSplit:
    return _row_splits.setdefault(model, RowSplit())


def on_main_rows(hook: Hook, row_split: RowSplit) -> Hook:
    """A forward hook of the head [B, T, ...] that leaves a branch's rows alone."""

    def act(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        rows = row_split.main
        if rows is None:
            return hook(module, args, output)
        if rows == 0:
            return output
        return torch.cat([hook(module, (args[0][:rows],), output[:rows]), output[rows:]])

    return act
