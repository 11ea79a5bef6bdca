"""Read what a device computes at every step without stalling it."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

LAG = 2  # steps by which a reader trails the GPU


class StepWatch:
    """Copies reports from the GPU without stalling it: a report is read once `LAG` more have been sent."""

    def __init__(self, like: Tensor) -> None:
        self.buffers = torch.empty(LAG + 1, *like.shape, dtype=like.dtype, pin_memory=True) if like.is_cuda else None
        self.pending: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self.count = 0

    def send(self, report: Tensor) -> None:
        if self.buffers is None:
            self.pending.append((report, None))
            return
        buffer, event = self.buffers[self.count % len(self.buffers)], torch.cuda.Event()
        buffer.copy_(report, non_blocking=True)
        event.record()
        self.pending.append((buffer, event))
        self.count += 1

    def read(self, *, flush: bool = False) -> list[Tensor]:
        """The reports that are due, oldest first; all of them with `flush`."""
        due = []
        while len(self.pending) > (0 if flush or self.buffers is None else LAG):
            report, event = self.pending.popleft()
            if event is not None:
                event.synchronize()
            due.append(report.clone())  # a later report reuses the buffer
        return due
