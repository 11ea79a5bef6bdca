"""Time decoding steps by the calls of the head, one per token, with several ways alternating inside one answer.

A step runs from one call of the head to the next, between events on the device: the head, the hooks on it, the choice of a
token and the text decoder. It excludes the prompt, and the median of an answer's steps ignores outliers. Alternating ways share
the same cache, clock rates and load of the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from measure import between_ms, reset_peak, synchronize, take_peak, timestamp
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.exact_product import make_exact, make_own
from mgap.methods.kinds.main_rows import Hook

TURN = 2  # steps in a row of one way
TRAILING = 3  # last steps, not counted: a loop may run ahead of its reader


class Step(NamedTuple):
    """From one call of the head to the next."""

    way: str
    number: int  # from 1
    ms: float
    peak: int | None  # bytes allocated on a GPU, at most


class StepTimer:
    """Inside the block, records every call of the head. `ways` are hooks on the head, or None, and alternate.

    A hook gets what a method at the head gets: from a 16-bit head, logits in float32.
    """

    def __init__(self, backbone: Backbone, ways: Mapping[str, Hook | None]) -> None:
        self.device, self.head = backbone.device, backbone.head_module
        self.ways = list(ways.items())
        self.has_hooks = any(hook is not None for hook in ways.values())
        self.started: Any = None
        self.calls: list[tuple[str, Any, int | None]] = []  # the way, the time, and the peak since the previous call

    def __enter__(self) -> StepTimer:
        synchronize(self.device)
        reset_peak(self.device)
        self.started, self.calls = timestamp(self.device), []
        self.handle = self.head.register_forward_hook(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()
        if self.has_hooks:
            make_own(self.head)
        synchronize(self.device)

    def __call__(self, head: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        name, hook = self._way
        self.calls.append((name, timestamp(self.device), take_peak(self.device)))
        if self.has_hooks:
            (make_own if self._way[1] is None else make_exact)(head)  # for the next call
        return None if hook is None or len(self.calls) == 1 else hook(head, args, output)

    @property
    def _way(self) -> tuple[str, Hook | None]:
        """Of the coming call; the prompt's has none."""
        return self.ways[max(len(self.calls) - 1, 0) // TURN % len(self.ways)]

    @property
    def prompt_ms(self) -> float:
        """Time up to the first call."""
        return between_ms(self.started, self.calls[0][1])

    @property
    def prompt_peak(self) -> int | None:
        return self.calls[0][2]

    @property
    def peak(self) -> int | None:
        """Peak over the prompt and all steps."""
        return max((peak for _, _, peak in self.calls if peak is not None), default=None)

    def steps(self, tokens: int) -> list[Step]:
        """The steps of an answer of so many tokens.

        A branch with separate forwards calls the head too: a step then spans two calls.
        """
        own = self.calls[self.calls_per_token(tokens) :: self.calls_per_token(tokens)]  # without the prompt's
        return [
            Step(name, number, between_ms(at, then), peak)
            for number, ((name, at, _), (_, then, peak)) in enumerate(pairwise(own), start=1)
        ]

    def step_ms(self, tokens: int) -> dict[str, float]:
        """The median step of each way in an answer of so many tokens, without its first turns and last steps."""
        steps, skipped = self.steps(tokens), TURN * len(self.ways)
        counted = steps[skipped:-TRAILING] if len(steps) > 2 * skipped + TRAILING else steps
        return {name: statistics.median(step.ms for step in counted if step.way == name) for name, _ in self.ways}

    def calls_per_token(self, tokens: int) -> int:
        return max(len(self.calls) // tokens, 1)
