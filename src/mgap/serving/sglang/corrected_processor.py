"""SGLang's `LogitsProcessor` with MGAP: what replaces `_get_logits` on one processor of a loaded model.

It is called with the states of the rows that need logits, and returns them gathered over all ranks, scaled, capped and in
float32. All ranks have the same rows and strengths, so they call the head together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.logits_processor import LogitsMetadata, should_apply_lm_head_quant_method
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from mgap.serving.correcting import CorrectedLogits
from mgap.serving.exact_logits import ExactLogits

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.layers.logits_processor import LogitsProcessor
    from torch import Tensor, nn

    from mgap.serving.engine_settings import Served
    from mgap.serving.sglang.batch_strengths import BatchStrengths


class ProcessorLogits:
    """A processor's own logits [..., vocab] of states [..., d], as they are without MGAP."""

    def __init__(self, processor: LogitsProcessor, head: nn.Module) -> None:
        self.compute, self.head = processor._get_logits, head
        self.metadata = LogitsMetadata(forward_mode=ForwardMode.DECODE)

    def __call__(self, h: Tensor) -> Tensor:
        # one call of ours may need two results, so neither goes to the buffer that all graphs share
        rows = h.flatten(0, -2)  # it drops the padding of the vocabulary from the second dimension
        logits: Tensor = self.compute(rows, self.head, self.metadata, use_logits_buffer=False)
        return logits.view(*h.shape[:-1], logits.shape[-1])


class CorrectedProcessor:
    """A processor whose logits are corrected."""

    def __init__(
        self,
        processor: LogitsProcessor,
        head: nn.Module,
        method: Served,
        rows: BatchStrengths,
        *,
        like: Tensor,
        log: Callable[[str], None],
    ) -> None:
        self.processor, self.head, self.rows = processor, head, rows
        compute = ProcessorLogits(processor, head)
        exact = exact_processor(processor, head, method, compute, like)
        if isinstance(exact, str):
            log(f"the logits that it corrects are rounded to {like.dtype}, because {exact}")
            exact = None
        self.corrected = CorrectedLogits(compute, method, rows, None, like=like, is_fixed=True, exact=exact)
        self.prune = processor._get_pruned_states
        processor.__dict__["_get_logits"] = self.logits  # these shadow the methods of the class
        processor.__dict__["_get_pruned_states"] = self.pruned

    def logits(self, hidden_states: Tensor, lm_head: nn.Module, logits_metadata: Any, *_: Any, **options: Any) -> Any:
        """In place of `_get_logits`."""
        if lm_head is not self.head:
            raise RuntimeError(f"mgap has measured one head, and this call is for another ({type(lm_head).__name__})")
        corrected = self.corrected(hidden_states)
        use_buffer = options.get("use_logits_buffer", True)
        return self.processor._copy_logits_to_buffer(corrected, logits_metadata, use_buffer=use_buffer)

    def pruned(self, *args: Any, **kwargs: Any) -> Any:
        """In place of `_get_pruned_states`, whose last result says which request a row belongs to; empty: a row a request."""
        found = self.prune(*args, **kwargs)
        self.rows.set_owners(found[-1] or None)
        return found


def exact_processor(
    processor: LogitsProcessor, head: nn.Module, method: Served, compute: ProcessorLogits, like: Tensor
) -> ExactLogits | str | None:
    """The logits in float32; None if they are in float32 already or need not be, a few words if they cannot be had."""
    if not method.exact or like.dtype.itemsize >= 4 or processor.use_fp32_lm_head:
        return None
    is_packed = should_apply_lm_head_quant_method(head, getattr(head, "quant_method", None))
    if is_packed or not hasattr(head, "weight"):
        return "the head is quantised"
    return ExactLogits(compute, [processor], "use_fp32_lm_head", True)
