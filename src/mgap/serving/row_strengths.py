"""Which strength each row of a call of the head has: the server's, unless a request brought its own.

A model runner arms this before each step. The first call of the head in a step is the one whose rows are requests; later calls
of the same step, as for prompt logprobs, and calls outside a step, as when memory is measured, have the server's strength.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Rows:
    """Strengths of the rows of one engine's next call."""

    def __init__(self) -> None:
        self.alpha = 0.0  # the server's
        self._next: tuple[Tensor | None, bool] = (None, False)

    def arm(self, strengths: Tensor | None, *, is_off: bool = False) -> None:
        """[rows] on the device, for the next call; None: all have the server's. `is_off`: all of them are 0."""
        self._next = (strengths, is_off)

    def take(self, count: int) -> tuple[Tensor | None, bool]:
        """What was armed for this call, once; refuses other rows than it was armed for."""
        (strengths, is_off), self._next = self._next, (None, False)
        if strengths is not None and len(strengths) != count:
            raise RuntimeError(
                f"mgap was told the strengths of {len(strengths)} rows, and the head has {count}: please report this"
            )
        return strengths, is_off


_known: dict[int, tuple[weakref.ref[VllmConfig], Rows]] = {}


def rows_of(config: VllmConfig) -> Rows:
    """The same for whoever has the same configuration object: the model runner and the loaded model of one engine."""
    found = _known.get(id(config))
    if found is None or found[0]() is not config:  # another engine's, at the same address
        found = _known[id(config)] = (weakref.ref(config), Rows())
    return found[1]
