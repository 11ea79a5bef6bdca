"""How often and how strongly MGAP acts in an engine: sampled in few steps, summed on the device, read rarely."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import torch

from mgap.methods.base import Observation
from mgap.serving.drift import Drift

EVERY = 16  # steps
SHARE = 4  # of more than EVERY * SHARE rows, one step in rows / SHARE: of 256 rows, one in 64


class CountSummary(NamedTuple):
    """Figures over the sampled rows."""

    rows: int
    beta: float  # mean
    changed: float  # share (0..1) of rows whose most likely token changed
    entropy: float  # mean, nats, of the plain prediction
    cosine: float  # mean, between a state and its part in the prior

    def text(self) -> str:
        return f"mean beta {self.beta:.4f}, most likely token changed in {self.changed:.2%} of {self.rows} rows looked at"


class Counts:
    """Sums over all sampled rows since the engine started, logged every `log_every` seconds; 0: never."""

    def __init__(self, device: torch.device, log_every: float, logger: logging.Logger) -> None:
        self.sums = torch.zeros(7, dtype=torch.float64, device=device)  # rows; beta, changed, entropy, cosine; squares of two
        self.log_every, self.wait, self.logged, self.logger = log_every, 0, time.monotonic(), logger
        self.drift = Drift()

    def is_sampled_step(self, rows: int) -> bool:
        """Count a step of so many rows; whether it is sampled. The first one is."""
        if self.wait > 0:
            self.wait -= 1
            return False
        self.wait = max(EVERY, rows // SHARE) - 1
        return True

    def add(self, observation: Observation) -> None:
        values = observation.values  # of MGAP, or of the predicted prior, which names its strength so
        names = ("strength" if "strength" in values else "beta", "entropy", "cosine")
        beta, entropy, cosine = (values[name].flatten().double() for name in names)
        changed = (observation.before.argmax(-1) != observation.after.argmax(-1)).flatten().double()
        each = (torch.ones_like(beta), beta, changed, entropy, cosine, entropy.square(), cosine.square())
        self.sums += torch.stack([values.sum() for values in each])

    def read(self) -> CountSummary:
        """The figures so far; waits for the device."""
        rows, *sums = self.sums.tolist()
        return CountSummary(int(rows), *(value / max(rows, 1) for value in sums[:4]))

    def log_when_due(self) -> None:
        """Log the figures, where the time has come, and warn where the rows since the last time are unlike the first ones."""
        now = time.monotonic()
        if not self.log_every or now - self.logged < self.log_every:
            return
        self.logged = now
        self.logger.info("MGAP: %s", self.read().text())
        rows, _, _, *moments = self.sums.tolist()
        if warning := self.drift.look(rows, moments):
            self.logger.warning("MGAP: %s", warning)
