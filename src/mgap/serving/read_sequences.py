"""From the tokens that vLLM answered with to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mgap.backbones.base import Backbone
from mgap.decoding.model import read_answer
from mgap.errors import PromptError
from mgap.types import Answer


def read_sequences(
    backbone: Backbone, sequences: Sequence[Sequence[int]], end: set[int], prompt: str, milliseconds: float, longest: int
) -> Answer:
    """The first sequence, with the others as its alternatives. Raises if one was cut short of `longest` tokens."""
    first, *others = (read_answer(backbone, tokens, end, prompt, milliseconds) for tokens in sequences)
    for answer in (first, *others):
        if answer.stop == "length" and len(answer.token_ids) < longest:
            raise PromptError(
                f"vLLM cut its answer after {len(answer.token_ids)} tokens, where max_model_len was reached: "
                "start vLLM with a larger max_model_len, or give a smaller max_new_tokens"
            )
    return replace(first, alternatives=tuple(others))
