"""The strength of each row in a call of the head: the server's, unless its request sets its own.

A model runner sets them before each step. Only the first call of the head in a step has requests as rows. Later calls in the
step (prompt logprobs) and calls outside a step (memory profiling) use the server's strength.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from mgap.serving.pair_membership import Membership

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class CallStrengths(NamedTuple):
    """Of one call of the head. The switches are known on the host, so that nobody waits for the device."""

    strengths: Tensor | None = None  # [rows], on the device; None: the server's for all
    is_off: bool = False  # all are 0
    has_plain: bool = False  # some are 0


class RowStrengths:
    """Row strengths for the next call in one engine, and which of its rows belong to pairs."""

    def __init__(self) -> None:
        self.alpha = 0.0  # the server's
        self.pairs: dict[int, Membership] = {}  # by row
        self._next = CallStrengths()

    def set_next(self, strengths: Tensor | None, *, is_off: bool = False, has_plain: bool = False) -> None:
        self._next = CallStrengths(strengths, is_off, has_plain)

    def take_next(self, count: int) -> CallStrengths:
        """Return and clear what was set for this call. Raises if it is for another number of rows."""
        taken, self._next = self._next, CallStrengths()
        if taken.strengths is not None and len(taken.strengths) != count:
            raise RuntimeError(
                f"mgap was told the strengths of {len(taken.strengths)} rows, and the head has {count}: please report this"
            )
        return taken


_rows_by_config: dict[int, tuple[weakref.ref[VllmConfig], RowStrengths]] = {}


def row_strengths_of(config: VllmConfig) -> RowStrengths:
    """The `RowStrengths` of a configuration object, shared by the model runner and the loaded model of one engine."""
    entry = _rows_by_config.get(id(config))
    if entry is None or entry[0]() is not config:  # an earlier engine's configuration had the same address
        entry = _rows_by_config[id(config)] = (weakref.ref(config), RowStrengths())
    return entry[1]
