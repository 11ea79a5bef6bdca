"""How often and how strongly MGAP acts in an engine: looked at in one step of sixteen, added up on the device, read seldom."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from mgap.methods.base import Observation

EVERY = 16  # steps


class Acted(NamedTuple):
    """Over the rows that were looked at."""

    rows: int
    beta: float  # mean
    changed: float  # share (0..1) of rows whose most likely token is another one

    def text(self) -> str:
        return f"mean beta {self.beta:.4f}, most likely token changed in {self.changed:.2%} of {self.rows} rows looked at"


class Counts:
    """Sums over all rows since the engine began; `due` says when it is time to tell."""

    def __init__(self, device: torch.device, log_every: float) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # rows, beta, changed
        self.log_every, self.step, self.told = log_every, 0, time.monotonic()

    def is_turn(self) -> bool:
        """Whether this step is looked at."""
        self.step += 1
        return self.step % EVERY == 1

    def add(self, seen: Observation) -> None:
        beta: Tensor = seen.values["beta"]
        changed = seen.before.argmax(-1) != seen.after.argmax(-1)
        self.sums += torch.stack([torch.ones_like(beta).sum(), beta.sum(), changed.sum().to(beta)]).to(self.sums)

    def read(self) -> Acted:
        """Waits for the device."""
        rows, beta, changed = self.sums.tolist()
        return Acted(int(rows), beta / max(rows, 1), changed / max(rows, 1))

    def due(self) -> bool:
        """Whether so many seconds have passed since it last was."""
        now = time.monotonic()
        if not self.log_every or now - self.told < self.log_every:
            return False
        self.told = now
        return True
