"""Transformers' `generate` with our checks: what cannot fit is refused before it, and scores that are not finite end it.

A score of -inf is a token that was dropped. A row whose best score is NaN or infinite says nothing about the next token, and
the choice would be token 0, or whatever stands there: often the end token, and so an empty answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from mgap.backbones.base import Backbone
from mgap.backbones.checkpoint_faults import checkpoint_faults
from mgap.backbones.decoding_limits import check_beams, check_memory, new_tokens_that_fit
from mgap.backbones.step_watch import StepWatch
from mgap.errors import NonFiniteScores

PLAIN = "the plain model"


def generate_checked(
    backbone: Backbone, inputs: Mapping[str, Any], config: GenerationConfig, who: str = PLAIN, **more: Any
) -> Any:
    """`generate` on encoded rows; `who` decodes, for the error: the names of methods, or the plain model."""
    rows, columns = inputs["input_ids"].shape
    config = copy(config)
    config.max_new_tokens = new_tokens_that_fit(backbone, inputs, config.max_new_tokens)
    check_beams(backbone, config.num_beams)
    check_memory(backbone, rows * max(config.num_beams, config.num_return_sequences or 1), columns)
    ends = [] if config.num_beams > 1 else ends_of(config)  # a beam that has ended is not continued
    guard = FiniteScores(backbone.model, who, columns, ends, is_sampling=bool(config.do_sample))
    processors = LogitsProcessorList([*more.pop("logits_processor", ()), guard])  # transformers puts them behind its own
    with checkpoint_faults(backbone), only_special_tokens_of(backbone.model):
        out = backbone.model.generate(**inputs, generation_config=config, logits_processor=processors, **more)
    guard.check(out if isinstance(out, Tensor) else out.sequences, flush=True)
    return out


@contextmanager
def only_special_tokens_of(model: nn.Module) -> Iterator[None]:
    """Inside the block the checkpoint's generation_config has its special tokens alone.

    What a caller's configuration leaves open, `generate` takes from the checkpoint's, and captured steps do not.
    """
    checkpoint: Any = model.generation_config
    tokens = {name: getattr(checkpoint, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**tokens)
    try:
        yield
    finally:
        model.generation_config = checkpoint


class FiniteScores(LogitsProcessor):
    """Put last, it looks at each row's best score, on a GPU two steps late and without waiting. Changes no finite row."""

    def __init__(self, model: nn.Module, who: str, prompt: int, ends: Sequence[int], *, is_sampling: bool) -> None:
        self.model, self.who, self.prompt, self.ends, self.is_sampling = model, who, prompt, ends, is_sampling
        self.watch: StepWatch | None = None
        self.lengths: deque[int] = deque()  # of the rows, prompt included, at each report that was not read yet

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        best = scores.amax(-1)  # NaN if any score is
        self.watch = self.watch or StepWatch(best)
        self.watch.send(best)
        self.lengths.append(input_ids.shape[1])
        self.check(input_ids)
        if self.is_sampling and scores.is_cuda:  # drawing from such a row would bring the device down before we look
            return scores.masked_fill(~best.isfinite().unsqueeze(-1), 0.0)
        return scores

    def check(self, tokens: Tensor, *, flush: bool = False) -> None:
        """Raise if a row had no finite best score at a step that is due; `tokens` [rows, T] are the rows so far."""
        for best in () if self.watch is None else self.watch.read(flush=flush):
            length, values = self.lengths.popleft(), best.tolist()
            for row in first_bad(values):
                if not set(self.ends) & set(tokens[row, self.prompt : length].tolist()):  # else padding behind its end
                    raise non_finite(self.who, values[row], length - self.prompt + 1, self.model)


def first_bad(values: Sequence[float]) -> list[int]:
    """The rows whose best score is not finite."""
    return [] if all(map(math.isfinite, values)) else [row for row, value in enumerate(values) if not math.isfinite(value)]


def likeliest(scores: Tensor, who: str, step: int = 1, model: nn.Module | None = None) -> Tensor:
    """The token with the best score [...] of each row of scores [..., vocab]; raises where there is none."""
    best, tokens = scores.max(-1)
    if bad := first_bad(values := best.flatten().tolist()):
        raise non_finite(who, values[bad[0]], step, model)
    return tokens


def non_finite(who: str, best: float, step: int, model: nn.Module | None = None) -> NonFiniteScores:
    """The error for a step (from 1) whose best score is `best`; looks through the model's weights for the cause."""
    what = "every token was dropped" if best == -math.inf else f"the scores are {'NaN' if math.isnan(best) else 'infinite'}"
    if damaged := "" if model is None else _damaged_weight(model):
        why = f"the checkpoint's {damaged} has values that are not finite: fetch the checkpoint again"
    elif who == PLAIN:
        why = "numbers overflow in this dtype: load the model with dtype=float32 or bfloat16"
    else:
        why = f"give {who} weaker settings, or load the model with dtype=float32; the plain model may overflow too"
    return NonFiniteScores(f"{who}: at token {step} of the answer {what}, so that none can be chosen; {why}")


def _damaged_weight(model: nn.Module) -> str:
    """The name of a weight with NaN or infinite values; "" if there is none."""
    for name, weight in model.named_parameters():
        is_readable = weight.is_floating_point() and not weight.is_meta and weight.numel() and weight.element_size() > 1
        if is_readable and not torch.stack(weight.detach().aminmax()).isfinite().all():
            return name
    return ""


def ends_of(config: GenerationConfig) -> list[int]:
    """The tokens that end an answer."""
    end = config.eos_token_id
    return [one for one in (end if isinstance(end, list) else [end]) if one is not None]
