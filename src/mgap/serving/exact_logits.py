"""vLLM's head in float32, for the steps that MGAP corrects: the same rule as with transformers (docs/concepts.md).

vLLM can run the head of an unquantised model in float32 (its setting `head_dtype`): one product that reads the weights once
on a CUDA device. That setting is for all requests of an engine. Here it is on only for calls whose rows are corrected, so that
plain rows stay as vLLM makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Compute = Callable[..., Tensor | None]  # states [rows, d] to logits [rows, vocab]; None on a rank that does not sample


class ExactLogits:
    """A model's `compute_logits` with the head's product in float32."""

    def __init__(self, compute: Compute, processors: list[Any]) -> None:
        self.compute, self.processors = compute, processors

    @classmethod
    def of(cls, model: nn.Module, compute: Compute, like: Tensor) -> ExactLogits | str:
        """For a state [1, d] of the model's dtype and device; a few words on why not, if the head cannot be run in float32."""
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        processors = [part for part in model.modules() if isinstance(part, LogitsProcessor) and hasattr(part, "head_dtype")]
        if not processors:
            return f"{type(model).__name__} does not use vLLM's own processor of logits"
        exact = cls(compute, processors)
        try:
            with torch.no_grad():
                exact(like)
        except ValueError as error:  # a quantised head
            return str(error)
        return exact

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor | None:
        before = [processor.head_dtype for processor in self.processors]
        for processor in self.processors:
            processor.head_dtype = torch.float32
        try:
            return self.compute(*args, **kwargs)
        finally:
            for processor, dtype in zip(self.processors, before, strict=True):
                processor.head_dtype = dtype
