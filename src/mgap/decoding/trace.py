"""The trace: what a method read and did at every step, with the values it used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mgap.methods.base import Observation
from mgap.types import Candidate, Step


@dataclass(frozen=True)
class StepRows:
    """The last position of one forward, for every row of the batch; stays on the device until it is read."""

    values: dict[str, Tensor]  # each [B]
    before: tuple[Tensor, Tensor]  # probabilities and token ids, each [B, top]
    after: tuple[Tensor, Tensor]
    at: tuple[int, ...] | None  # each row's position in its answer; None: the number of steps so far
    branches: tuple[Tensor, ...] | None = None  # [B, d] each: the branches' states, if the method reports them


class Recorder:
    """Listens to a method and keeps a few numbers per step, nothing of vocabulary size."""

    def __init__(self, top: int = 5) -> None:
        self.top, self.steps = top, list[StepRows]()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, observed: Observation) -> None:
        last = {name: value[:, -1].detach().clone() for name, value in observed.values.items()}  # a graph reuses its memory
        branches = None if observed.branches is None else tuple(state.detach().clone() for state in observed.branches)
        self.steps.append(
            StepRows(last, self._top_tokens(observed.before), self._top_tokens(observed.after), observed.at, branches)
        )

    def _top_tokens(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits[:, -1].detach()
        best = logits.softmax(-1).topk(min(self.top, logits.shape[-1]))
        return best.values, best.indices

    def along(self, token_ids: list[int], rows: list[int], spell: Callable[[int], str]) -> tuple[Step, ...]:
        """The steps of one sequence: token t comes from row rows[t] of forward t, or of the last forward at position t."""

        def candidates(best: tuple[Tensor, Tensor], row: int) -> tuple[Candidate, ...]:
            pairs = zip(best[1][row].tolist(), best[0][row].tolist(), strict=True)
            return tuple(Candidate(i, spell(i), p) for i, p in pairs)

        return tuple(
            Step(
                token_id=token,
                token=spell(token),
                values={name: float(value[row]) for name, value in step.values.items()},
                before=candidates(step.before, row),
                after=candidates(step.after, row),
            )
            for token, row, step in zip(token_ids, rows, self._steps_of(rows), strict=False)  # the last forward may be unused
        )

    def _steps_of(self, rows: list[int]) -> list[StepRows]:
        if not self.steps or self.steps[0].at is None:
            return self.steps
        last = {(position, row): step for step in self.steps for row, position in enumerate(step.at or ())}
        return [last[position, row] for position, row in enumerate(rows)]
