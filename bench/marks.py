"""When the head is called, which is once a token: how long steps take, and ways that take turns inside one answer.

A step is from one call of the head to the next, between events on the device: the head, what acts there, the choice of a token
and the text decoder. Neither the prompt nor what else the processor does from time to time gets into it, and the median of an
answer's steps passes over hiccups. Ways in turns meet the same cache, the same clocks and the same neighbours on the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from measure import between_ms, finish, forget_peak, mark, take_peak
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.methods.kinds.main_rows import Hook

TURN = 2  # steps that a way has in a row
LATE = 3  # steps at the end that do not count: a loop may run ahead of its reader


class Step(NamedTuple):
    """From one call of the head to the next."""

    way: str
    number: int  # from 1
    ms: float
    peak: int | None  # bytes that a GPU had allocated at most


class Marks:
    """Inside the block, every call of the head is noted; `ways` are hooks there, or None, and take turns."""

    def __init__(self, backbone: Backbone, ways: Mapping[str, Hook | None]) -> None:
        self.device, self.head = backbone.device, backbone.head_module
        self.ways = list(ways.items())
        self.began: Any = None
        self.calls: list[tuple[str, Any, int | None]] = []  # whose turn, when, and the peak since the call before

    def __enter__(self) -> Marks:
        finish(self.device)
        forget_peak(self.device)
        self.began, self.calls = mark(self.device), []
        self.handle = self.head.register_forward_hook(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()
        finish(self.device)

    def __call__(self, head: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        name, hook = self.ways[max(len(self.calls) - 1, 0) // TURN % len(self.ways)]  # the prompt's call is nobody's turn
        self.calls.append((name, mark(self.device), take_peak(self.device)))
        return None if hook is None or len(self.calls) == 1 else hook(head, args, output)

    @property
    def prompt_ms(self) -> float:
        """Up to the first call."""
        return between_ms(self.began, self.calls[0][1])

    @property
    def prompt_peak(self) -> int | None:
        return self.calls[0][2]

    @property
    def peak(self) -> int | None:
        """Of the prompt and all steps."""
        return max((peak for _, _, peak in self.calls if peak is not None), default=None)

    def steps(self, tokens: int) -> list[Step]:
        """Of an answer of so many tokens.

        A branch that has forwards of its own calls the head as well: a step then is from every other call to the next such.
        """
        own = self.calls[self.each(tokens) :: self.each(tokens)]  # without the prompt's
        return [
            Step(name, number, between_ms(at, then), peak)
            for number, ((name, at, _), (_, then, peak)) in enumerate(pairwise(own), start=1)
        ]

    def step_ms(self, tokens: int) -> dict[str, float]:
        """The median step of each way in an answer of so many tokens; its first turns and last steps do not count."""
        steps, skipped = self.steps(tokens), TURN * len(self.ways)
        counted = steps[skipped:-LATE] if len(steps) > 2 * skipped + LATE else steps
        return {name: statistics.median(step.ms for step in counted if step.way == name) for name, _ in self.ways}

    def each(self, tokens: int) -> int:
        """Calls a token."""
        return max(len(self.calls) // tokens, 1)
