"""Which rows of a forward are the caller's, so that a head method can be stacked on one with a second branch.

A second branch appends its rows to the main ones. A head method then acts on the main rows only: the contrast subtracts what
the plain model predicts for the branch's inputs (methods/mgap.md, section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


class RowSplit:
    """How the rows of a model's current forward are split."""

    main: int | None = None  # the number of rows that are the caller's, the rest is a branch's; None: all
    is_paused = False  # the forward does not decode, for example it probes the head: add no branch

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
