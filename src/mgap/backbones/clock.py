"""Where the time goes: seconds by stage, each charged to the innermost stage that is open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

STARTING = "starting workers"
WAITING = "waiting for pictures"  # or opening and preparing them, without workers
INPUTS = "preparing inputs"  # templates, tokens, padding, the way to the device
READING = "reading pictures"  # the forward of a shared prefill
FIRST = "first token"  # what was not read before: the whole prompt, or the question alone behind a shared prefill
NEXT = "next tokens"
ANSWERS = "reading answers"  # tokens to text
WRITING = "writing"
STAGES = (STARTING, WAITING, INPUTS, READING, FIRST, NEXT, ANSWERS, WRITING)


class Clock:
    """Off, it costs nothing and keeps nothing. On, it waits for the device at every border: times are right, not the best."""

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
        """Charge what happens inside to this stage, but for stages inside it."""
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

    def turn(self, name: str) -> None:
        """The innermost stage is over, and this one takes its place; nothing happens where none is open."""
        if self._open:
            self._charge()
            self._open[-1] = name

    def after_first_token(self) -> StoppingCriteriaList:
        """For generate: the next tokens begin when the first one is there. Nothing is stopped."""
        return StoppingCriteriaList([_Turn(self)])

    def take(self) -> dict[str, float]:
        """The seconds so far; counts from zero again."""
        found, self.seconds = self.seconds, {}
        return found

    def _charge(self) -> None:
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


class _Turn(StoppingCriteria):
    def __init__(self, clock: Clock) -> None:
        self.clock, self.is_done = clock, False

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        if not self.is_done:
            self.is_done = True
            self.clock.turn(NEXT)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
