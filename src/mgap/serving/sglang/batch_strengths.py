"""The strength of each row that SGLang's head reads: the server's, unless its request sets its own.

SGLang replays its decoding steps as CUDA graphs, in which no Python runs: strengths lie at one address and are written there
before each forward, on the stream that runs it. A prefill that returns logprobs has several rows a request, in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mgap.serving.engine_settings import own_alpha
from mgap.serving.row_strengths import CallStrengths, RowStrengths

if TYPE_CHECKING:
    from torch import nn

STRENGTHS_ATTRIBUTE = "_mgap_strengths"  # of a loaded model
ALPHAS_ATTRIBUTE = "_mgap_alphas"  # of a batch: a strength for each of its requests
MOST_ROWS = 1 << 16  # requests in a batch


class BatchStrengths(RowStrengths):
    """Row strengths of the batch that an engine is about to run."""

    def __init__(self, alpha: float, device: torch.device) -> None:
        super().__init__()
        self.alpha = alpha
        self.fixed = torch.full((MOST_ROWS,), alpha, dtype=torch.float32, device=device)  # where CUDA graphs read them
        self.alphas: Sequence[float] | None = None  # of the batch
        self.owners: Sequence[int] | None = None  # for each row, the request that it belongs to; None: a row a request
        self.taken = 0  # rows of `owners`

    def begin(self, alphas: Sequence[float] | None) -> None:
        """Before each forward, with a strength for each request; None: the forward is not for requests."""
        self.alphas, self.owners, self.taken = alphas, None, 0
        if alphas:
            if len(alphas) > MOST_ROWS:
                raise RuntimeError(f"mgap has room for {MOST_ROWS} requests a batch, and this one has {len(alphas)}")
            host = torch.tensor(alphas, dtype=torch.float32, pin_memory=self.fixed.is_cuda)
            self.fixed[: len(alphas)].copy_(host, non_blocking=True)

    def set_owners(self, owners: Sequence[int] | None) -> None:
        """Before the calls of a prefill that returns logprobs."""
        self.owners, self.taken = owners, 0

    def take_next(self, count: int) -> CallStrengths:
        from sglang.srt.model_executor.runner_utils.capture_mode import get_is_capture_mode

        if get_is_capture_mode():  # what a graph must do for any strengths
            return CallStrengths(self.fixed[:count], is_off=False, has_plain=True)
        if self.alphas is None:
            return CallStrengths()
        if self.owners is None:
            alphas, strengths = self.alphas, self.fixed[:count]  # rows behind the last request are padding
            is_short = count < len(alphas)
        else:
            owners = self.owners[self.taken : self.taken + count]
            self.taken += count
            alphas, is_short = [self.alphas[owner] for owner in owners], len(owners) != count
            strengths = torch.tensor(alphas, dtype=torch.float32).to(self.fixed.device)
        if is_short:
            raise RuntimeError(
                f"mgap was told the strengths of {len(alphas)} rows, and the head has {count}: please report this"
            )
        differ = any(alpha != self.alpha for alpha in alphas)
        return CallStrengths(strengths if differ else None, is_off=not any(alphas), has_plain=not all(alphas))


def strengths_of(model: nn.Module) -> BatchStrengths | None:
    """What `model_loading` has put on a model; None if it is without MGAP."""
    rows: BatchStrengths | None = model.__dict__.get(STRENGTHS_ATTRIBUTE)
    return rows


def note_requests(made: Any, batch: Any, model: nn.Module) -> None:
    """Note the strength of each request on a batch that SGLang has made of them."""
    rows = strengths_of(model)
    if rows is not None:
        own = [own_alpha(request.sampling_params.custom_params, "custom_params") for request in batch.reqs]
        setattr(made, ALPHAS_ATTRIBUTE, [rows.alpha if each is None else each for each in own])


def begin_batch(batch: Any, model: nn.Module) -> None:
    """Set the strengths of the batch that the model is about to run."""
    rows = strengths_of(model)
    if rows is not None:
        rows.begin(getattr(batch, ALPHAS_ATTRIBUTE, None))
