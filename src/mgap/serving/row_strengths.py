"""The strength of each row in a call of the head: the server's, unless its request sets its own.

A model runner sets them before each step. Only the first call of the head in a step has requests as rows. Later calls in the
step (prompt logprobs) and calls outside a step (memory profiling) use the server's strength.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class RowStrengths:
    """Row strengths for the next call in one engine."""

    def __init__(self) -> None:
        self.alpha = 0.0  # the server's
        self._next: tuple[Tensor | None, bool] = (None, False)

    def set_next(self, strengths: Tensor | None, *, is_off: bool = False) -> None:
        """Set the strengths [rows], on the device, of the next call. None: the server's for all. `is_off`: all are 0."""
        self._next = (strengths, is_off)

    def take_next(self, count: int) -> tuple[Tensor | None, bool]:
        """Return and clear the strengths set for this call. Raises if they are for another number of rows."""
        (strengths, is_off), self._next = self._next, (None, False)
        if strengths is not None and len(strengths) != count:
            raise RuntimeError(
                f"mgap was told the strengths of {len(strengths)} rows, and the head has {count}: please report this"
            )
        return strengths, is_off


_rows_by_config: dict[int, tuple[weakref.ref[VllmConfig], RowStrengths]] = {}


def row_strengths_of(config: VllmConfig) -> RowStrengths:
    """The `RowStrengths` of a configuration object, shared by the model runner and the loaded model of one engine."""
    entry = _rows_by_config.get(id(config))
    if entry is None or entry[0]() is not config:  # an earlier engine's configuration had the same address
        entry = _rows_by_config[id(config)] = (weakref.ref(config), RowStrengths())
    return entry[1]
