"""A model's `compute_logits` with MGAP applied: the callable that replaces it on the loaded model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mgap.backbones.head import Head
from mgap.errors import UnsupportedHead
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction
from mgap.methods.predicted_prior import Removal
from mgap.serving.counts import Counts
from mgap.serving.engine_settings import Served
from mgap.serving.exact_logits import Compute
from mgap.serving.row_strengths import RowStrengths


class ComputeLogits(nn.Module):
    """`compute_logits` as a module, for `Head.measure`: sharded, padded, packed and scaled heads are run, not read."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, h: Tensor) -> Tensor:
        logits = self.compute(h)
        if logits is None:
            raise UnsupportedHead(
                "mgap: this rank of the engine has no logits, so that they cannot be corrected on all of them"
            )
        return logits


class CorrectedLogits:
    """`compute_logits` followed by MGAP. A head that may change or is not linear runs a second time instead."""

    def __init__(
        self,
        compute: Compute,
        method: Served,
        rows: RowStrengths,
        counts: Counts | None,
        *,
        like: Tensor,
        is_fixed: bool,
        exact: Compute | None = None,
    ) -> None:
        """`like` is a state [1, d] with the model's dtype and device; `is_fixed`: the head is the same for every request.

        Without `counts` a call looks at the host's state only for the rows' strengths, so that a CUDA graph can capture it.
        `exact` gives the logits of corrected rows in float32; None: they are `compute`'s.
        """
        self.compute, self.method, self.rows, self.counts = compute, method, rows, counts
        self.exact = exact
        self.like, self.is_fixed, self.is_stale, self.tap = like, is_fixed, False, Tap()
        self.head = self.measured_head()
        self.correction = self.bind()

    def measured_head(self) -> Head:
        """What the engine's head does; all ranks must measure it together."""
        head = Head.measure(ComputeLogits(self.exact or self.compute), self.like)
        return head if self.is_fixed else replace(head, linear=False)

    def bind(self) -> Correction | Removal:
        """The correction with the method in hand, of the head as it is now.

        One that may change with a request is measured once, before adapters are there: later, every call of it must have the
        rows of a step, whose adapters vLLM knows by their place. Nothing of what was measured is used beside its being run.
        """
        if self.is_stale and self.is_fixed:
            self.head = self.measured_head()
        self.is_stale = False
        return self.method.bind(self.head, self.tap)

    def use(self, method: Served) -> None:
        """Correct with another prior or other settings from now on; all ranks must do so together."""
        self.method, self.rows.alpha = method, method.settings.alpha
        self.correction = self.bind()

    @property
    def way(self) -> str:
        """How logits are corrected, for the log."""
        step = "fused kernels" if self.correction.fused is not None else "a table of the head's directions"
        if self.correction.table is None:
            step = "a second pass through the head"
        return step if self.exact is None else f"{step}, from float32 logits"

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        strengths, is_off, has_plain = self.rows.take_next(len(hidden_states))
        if is_off or len(hidden_states) == 0 or (strengths is None and self.method.settings.alpha == 0):
            return self.compute(hidden_states, *args, **kwargs)
        if self.is_stale:
            self.correction = self.bind()
        logits = (self.exact or self.compute)(hidden_states, *args, **kwargs)
        if logits is None:
            return None
        plain = self.compute(hidden_states, *args, **kwargs) if has_plain and self.exact is not None else None
        if plain is None and has_plain and self.method.settings.restore:
            plain = logits  # not overwritten: rescaling takes another tensor
        counts = self.counts
        self.tap.listener = counts.add if counts is not None and counts.is_sampled_step(len(hidden_states)) else None
        with torch.no_grad():
            corrected = self.correction.step(hidden_states, logits, strengths, may_overwrite=True)
        if plain is not None and strengths is not None:  # rows that are off beside others are the engine's own
            corrected = torch.where(strengths.unsqueeze(-1) == 0, plain.to(corrected), corrected)
        if counts is not None:
            counts.log_when_due()
        return corrected
