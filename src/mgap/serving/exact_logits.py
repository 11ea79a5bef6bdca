"""A server's head in float32, for the steps that MGAP corrects: the same rule as with transformers (docs/concepts.md).

vLLM and SGLang can run the head of an unquantised model in float32 (`head_dtype`, `use_fp32_lm_head`): one product that reads
the weights once on a CUDA device. That setting is for all requests of an engine. Here it is on only for calls whose rows are
corrected, so that plain rows stay as the server makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Compute = Callable[..., Tensor | None]  # states [rows, d] to logits [rows, vocab]; None on a rank that does not sample


class ExactLogits:
    """A model's `compute_logits` with the head's product in float32.

    Setting the attribute `switch` of its processors of logits to `value` makes it so; vLLM's unless others are given.
    """

    def __init__(self, compute: Compute, processors: list[Any], switch: str = "head_dtype", value: Any = torch.float32) -> None:
        self.compute, self.processors, self.switch, self.value = compute, processors, switch, value

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
        before = [getattr(processor, self.switch) for processor in self.processors]
        for processor in self.processors:
            setattr(processor, self.switch, self.value)
        try:
            return self.compute(*args, **kwargs)
        finally:
            for processor, value in zip(self.processors, before, strict=True):
                setattr(processor, self.switch, value)
