"""The state that a method decodes the first word of an answer from, at many strengths for one pass through the model.

A method with a second branch runs it as it always does; what the head read of both is kept, and the method itself says which
state they amount to (`Method.effective_states`). A method at the head says so of the plain state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.head import Head
from mgap.backbones.sharing import shared_pictures
from mgap.decoding.attach import attach, attached, refuse_modes
from mgap.decoding.generate import generate
from mgap.errors import ModelError, SettingError
from mgap.methods.base import Method, Seam
from mgap.states.collect import catch_states
from mgap.types import Decoding, Mode

_ONE = Decoding(max_new_tokens=1)


@dataclass(frozen=True)
class FirstStates:
    """What the head read of a batch when the first token was chosen; row for row."""

    method: Method | None  # None: plain decoding
    head: Head
    h: Tensor  # [B, d] in `head.wide`
    branch: Tensor | None  # [B, d] of the second branch, where there is one

    def at(self, strength: float) -> Tensor:
        """The states [B, d] that are decoded from."""
        if self.method is not None:
            return self.method.effective_states(self.head, self.h, self.branch, strength)
        if strength != 0:
            raise SettingError(f"plain decoding has no strength, so none of {strength}: ask for 0")
        return self.h

    def plain_tokens(self) -> list[int]:
        """The likeliest first token of each row as the plain model has it."""
        with torch.no_grad():
            tokens: list[int] = self.head.post(self.head.product(self.h).to(self.head.wide)).argmax(-1).tolist()
        return tokens


@contextmanager
def first_states(model: Backbone | HasBackbone, method: Method | None) -> Iterator[Callable[[dict[str, Tensor]], FirstStates]]:
    """Inside the block the method is on, and what is given reads encoded rows; refuses a method that has no such state."""
    backbone = Backbone.of(model)
    if active := attached(backbone.model):
        raise SettingError(
            f"{active[0].method.name} is attached to this model: detach it, and name it as the method to look at"
        )
    if method is not None:
        method.require_state()
        refuse_modes(method, frozenset({Mode.GREEDY, Mode.BATCH}))
    lanes = 2 if method is not None and method.seam is Seam.BRANCH else 1
    head = backbone.probe_head()

    def read(inputs: dict[str, Tensor]) -> FirstStates:
        with catch_states(backbone) as caught, shared_pictures(backbone):
            generate(backbone, inputs, _ONE)
        parts = _last(caught, lanes * len(inputs["input_ids"])).to(head.device, head.wide).chunk(lanes)
        return FirstStates(method, head, parts[0], parts[1] if lanes == 2 else None)

    with nullcontext() if method is None else attach(backbone, method):
        yield read


def _last(caught: list[Tensor], rows: int) -> Tensor:
    """The rows that the head read last, [rows, d]: what a method read before, such as a description, is not the first token.

    A branch in the same forward stands behind the main rows, and one with a forward of its own runs after them.
    """
    parts: list[Tensor] = []
    while caught and sum(map(len, parts)) < rows:
        parts.insert(0, caught.pop())
    if sum(map(len, parts)) != rows:
        raise ModelError(
            f"the head read {sum(map(len, parts))} rows for the first token, not {rows}: its states cannot be told apart"
        )
    return torch.cat([part.to(parts[0].device) for part in parts])
