"""How often and how strongly MGAP acts in an engine: sampled in one step of sixteen, summed on the device, read rarely."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from mgap.methods.base import Observation

EVERY = 16  # steps


class CountSummary(NamedTuple):
    """Figures over the sampled rows."""

    rows: int
    beta: float  # mean
    changed: float  # share (0..1) of rows whose most likely token changed

    def text(self) -> str:
        return f"mean beta {self.beta:.4f}, most likely token changed in {self.changed:.2%} of {self.rows} rows looked at"


class Counts:
    """Sums over all sampled rows since the engine started; `is_due` says when to log them."""

    def __init__(self, device: torch.device, log_every: float) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # rows, beta, changed
        self.log_every, self.step, self.logged = log_every, 0, time.monotonic()

    def is_sampled_step(self) -> bool:
        """Count a step; whether it is sampled."""
        self.step += 1
        return self.step % EVERY == 1

    def add(self, observation: Observation) -> None:
        beta: Tensor = observation.values["beta"]
        changed = observation.before.argmax(-1) != observation.after.argmax(-1)
        self.sums += torch.stack([torch.ones_like(beta).sum(), beta.sum(), changed.sum().to(beta)]).to(self.sums)

    def read(self) -> CountSummary:
        """The figures so far; waits for the device."""
        rows, beta, changed = self.sums.tolist()
        return CountSummary(int(rows), beta / max(rows, 1), changed / max(rows, 1))

    def is_due(self) -> bool:
        """Whether `log_every` seconds have passed since the last time this was true."""
        now = time.monotonic()
        if not self.log_every or now - self.logged < self.log_every:
            return False
        self.logged = now
        return True
