"""Measures where the time goes: seconds per stage, charged to the innermost open stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

STARTING = "starting workers"
WAITING = "waiting for pictures"  # or opening and preparing them, without workers
INPUTS = "preparing inputs"  # templates, tokens, padding, transfer to the device
READING = "reading pictures"  # the forward of a shared prefill
FIRST = "first token"  # reads the whole prompt, or only the question after a shared prefill
NEXT = "next tokens"
ANSWERS = "reading answers"  # tokens to text
WRITING = "writing"
STAGES = (STARTING, WAITING, INPUTS, READING, FIRST, NEXT, ANSWERS, WRITING)


class Clock:
    """Off, it costs nothing. On, it synchronises the device at every stage boundary: times are right, but not the fastest."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device  # None: off
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @property
    def is_on(self) -> bool:
        return self.device is not None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the time inside the block to this stage, except for nested stages."""
        if not self.is_on:
            yield
            return
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def switch(self, name: str) -> None:
        """Replace the innermost open stage by this one; does nothing if none is open."""
        if self._open:
            self._charge()
            self._open[-1] = name

    def after_first_token(self) -> StoppingCriteriaList:
        """For `generate`: a criterion that switches to NEXT after the first token, and never stops."""
        return StoppingCriteriaList([_SwitchToNext(self)])

    def take(self) -> dict[str, float]:
        """Return the seconds so far and reset them."""
        seconds, self.seconds = self.seconds, {}
        return seconds

    def _charge(self) -> None:
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


class _SwitchToNext(StoppingCriteria):
    def __init__(self, clock: Clock) -> None:
        self.clock, self.is_done = clock, False

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        if not self.is_done:
            self.is_done = True
            self.clock.switch(NEXT)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
