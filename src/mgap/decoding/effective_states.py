"""The state that a method decodes the first token of an answer from, at many strengths for one pass through the model.

The method runs as usual. We keep what the head read for the main rows, the branches and early layers, and what the method
decided; the method itself computes the state these amount to (`Method.effective_states`). `watch` does so at every token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.checked_generate import PLAIN, likeliest
from mgap.backbones.head import Head
from mgap.backbones.head_states import on_head_input
from mgap.backbones.logit_lens import Lens, as_head_input
from mgap.backbones.shared_vision import shared_pictures
from mgap.decoding.attach import attach, attached, refuse_modes
from mgap.decoding.generate import generate
from mgap.decoding.trace import Recorder, StepRows
from mgap.errors import SettingError
from mgap.methods.base import Method
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.kinds.layers import LayersMethod
from mgap.methods.kinds.main_rows import row_split_of
from mgap.types import Decoding, Mode

_ONE = Decoding(max_new_tokens=1)


@dataclass(frozen=True)
class StepStates:
    """What the head read for a batch when one token was chosen."""

    method: Method | None  # None: plain decoding
    head: Head
    inputs: HeadInputs
    traced: StepRows | None = None  # what the method reported, if anything

    @property
    def h(self) -> Tensor:
        """What the head read for the main rows, [B, d] in `head.wide`: the plain state, except under pai and asd."""
        return self.inputs.h

    @property
    def branches(self) -> tuple[Tensor, ...]:
        """What the head read for each branch, [B, d]."""
        return self.inputs.branches

    def at(self, strength: float | None = None) -> Tensor:
        """The states [B, d] that are decoded from at this strength; None: at the method's own."""
        if self.method is not None:
            weight = self.method.own_strength(self.inputs) if strength is None else strength
            return self.method.effective_states(self.head, self.inputs, weight)
        if strength:
            raise SettingError(f"plain decoding has no strength, so none of {strength}: ask for 0")
        return self.h

    def plain_tokens(self) -> list[int]:
        """The most likely token of each main row alone: the plain model's token where `h` is the plain state."""
        with torch.no_grad():
            tokens: list[int] = likeliest(self.head.post(self.head.own_product(self.h)).float(), PLAIN).tolist()
        return tokens


@contextmanager
def first_states(model: Backbone | HasBackbone, method: Method | None) -> Iterator[Callable[[dict[str, Tensor]], StepStates]]:
    """Attach the method and yield a function that reads encoded rows; refuses a method that decodes from no single state."""
    backbone = Backbone.of(model)
    with watch(backbone, method) as take_steps:

        def read(inputs: dict[str, Tensor]) -> StepStates:
            with shared_pictures(backbone):
                generate(backbone, inputs, _ONE)
            return take_steps()[-1]

        yield read


@contextmanager
def watch(
    model: Backbone | HasBackbone,
    method: Method | None,
    *,
    top: int = 1,
    needs_state: bool = True,
) -> Iterator[Callable[[], list[StepStates]]]:
    """Attach the method and yield a function that returns the states of every token since its last call.

    For greedy decoding, also in batches. Refuses a method that decodes from no single state; with `needs_state=False` only
    `StepStates.at` refuses it. `top` tokens are traced before and after.
    """
    backbone = Backbone.of(model)
    if active := attached(backbone.model):
        raise SettingError(
            f"{active[0].method.name} is attached to this model: detach it, and name it as the method to look at"
        )
    if method is not None:
        if needs_state:
            method.require_state()
        refuse_modes(method, frozenset({Mode.GREEDY, Mode.BATCH}))
    head = backbone.probe_head()
    with ExitStack() as stack:
        recorder = Recorder(top)  # stays empty under plain decoding
        if method is not None:
            recorder = stack.enter_context(stack.enter_context(attach(backbone, method)).record(top))
        reader = HeadReader(backbone, head, method, recorder)  # after the method, so that the method's hooks run first
        stack.callback(reader.remove)
        yield reader.take_steps


@dataclass(frozen=True)
class HeadReading:
    """What the head read for one token, in the model's dtype."""

    main: Tensor  # [B, d]
    branches: list[Tensor]  # [B, d] each: from the same forward, or appended by each branch's own forward
    early: dict[int, Tensor] = field(default_factory=dict)  # layer -> [B, d]


class HeadReader:
    """Records what the head reads: the main rows start a token, and branch forwards that follow belong to it.

    Forwards that a method runs before the first token, for example to describe a picture, belong to no token.
    """

    def __init__(self, backbone: Backbone, head: Head, method: Method | None, recorder: Recorder) -> None:
        self.row_split, self.head, self.method, self.recorder = row_split_of(backbone.model), head, method, recorder
        self.lens: Lens | None = None
        self.norm: nn.Module | None = None
        if isinstance(method, LayersMethod):
            self.lens, self.norm = method.lens(backbone, head)
        self.reading: HeadReading | None = None  # of the forward that is running
        self.steps: list[StepStates] = []
        self.handles = [
            on_head_input(backbone, self.read),
            backbone.model.register_forward_hook(self.finish_step),
            *(self.lens.hook() if self.lens else []),
        ]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def take_steps(self) -> list[StepStates]:
        steps, self.steps = self.steps, []
        return steps

    def read(self, h: Tensor) -> None:
        """Record the last position of the head's input h [rows, T, d]."""
        if self.row_split.is_paused:
            return
        rows = h[:, -1]
        if self.row_split.main != 0:
            main, *branches = rows.split(self.row_split.main or len(rows))
            self.reading = HeadReading(main, branches, self._early(h))
        elif self.reading is not None:
            self.reading.branches.append(rows)

    def finish_step(self, *_: Any) -> None:
        """Store the token's states, after the caller's forward and whatever the method ran behind it."""
        if self.reading is None or self.row_split.main == 0 or self.row_split.is_paused:
            return
        traced = self.recorder.steps[-1] if self.recorder.steps else None
        if traced is not None and traced.branches is not None:
            self.reading = replace(self.reading, branches=list(traced.branches))
        step = states_of(self.method, self.head, self.reading, {} if traced is None else traced.values)
        self.steps.append(replace(step, traced=traced))
        self.reading = None
        self.recorder.steps.clear()

    def _early(self, h: Tensor) -> dict[int, Tensor]:
        if self.lens is None:
            return {}
        states = as_head_input(self.head, self.lens.take(h)[:, :, -1].detach(), self.norm)  # [layers, B, d]
        return dict(zip(self.lens.layers, states, strict=True))


def states_of(method: Method | None, head: Head, read: HeadReading, values: Mapping[str, Tensor]) -> StepStates:
    """One token's states, from what the head read and the `values` that the method traced, [B] each."""

    def wide(state: Tensor) -> Tensor:
        return state.to(head.device, head.wide)

    early = {layer: wide(state) for layer, state in read.early.items()}
    traced = {name: wide(value) for name, value in values.items()}
    return StepStates(method, head, HeadInputs(wide(read.main), tuple(map(wide, read.branches)), early, traced))
