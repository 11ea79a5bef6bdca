"""Read the log-odds of yes against no at the first token of plain decoding.

A constant that is added to yes and taken from no moves all of them alike, so that what any such constant would have answered
can be told later, without the model: benchmarks/pope/equal_recall.py. The model's logits may be rounded to 16 bits, and a
method's are not, nor are those of a bias: they are computed once more here, without that rounding. Cost: one product of the
head for each answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.head_states import on_head_input
from mgap.decoding.fast.captured_loop import head_of
from mgap.errors import SettingError, UnsupportedDecoding, UnsupportedHead
from mgap.methods.base import Method
from mgap.methods.bias import Bias
from mgap.methods.kinds.opposed_words import log_odds
from mgap.types import Mode


class FirstLogOdds:
    """Around one generation, keeps the state that the first token is predicted from. The words are those of `Bias`."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.head = backbone, head_of(backbone)
        up, down = (torch.tensor(sorted(ids)) for ids in Bias(shift=0.0).tokens(backbone.tokenizer))
        self.up, self.down = up.to(self.head.device), down.to(self.head.device)

    def __enter__(self) -> FirstLogOdds:
        self.handle = on_head_input(self.backbone, self._keep)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.handle.remove()

    def _keep(self, h: Tensor) -> None:
        self.state = h[:, -1]  # [rows, d]
        self.handle.remove()  # later calls predict later tokens

    def rows(self, count: int) -> list[float]:
        """By row of the prompts; beams and further sequences repeat them."""
        state = self.state[:: len(self.state) // count].to(self.head.device)
        with torch.no_grad():
            logits = self.head.post(self.head.product(state))  # [count, vocab]
        read: list[float] = log_odds(logits, self.up, self.down).tolist()
        return read


def unreadable(backbone: Backbone, modes: frozenset[Mode], methods: Iterable[Method]) -> str:
    """Why log-odds cannot be read in these modes under these methods; "" if they can."""
    if names := [method.name for method in methods]:
        return f"log-odds are those of plain decoding, and {names[0]} is on"
    if Mode.ASSISTED in modes:
        return "assisted decoding predicts several tokens at once, and none of them is the first"
    try:
        head_of(backbone)
        Bias(shift=0.0).tokens(backbone.tokenizer)
    except (SettingError, UnsupportedHead) as error:
        return f"log-odds are of yes against no: {error}"
    return ""


def refuse_unreadable(backbone: Backbone, modes: frozenset[Mode], methods: Iterable[Method]) -> None:
    if reason := unreadable(backbone, modes, methods):
        raise UnsupportedDecoding(f"{reason}: leave log_odds out")
