"""What captions cost: forwards and milliseconds per token.

Forwards per token: passes of rows through the decoder's first block, divided by tokens. Captions are decoded one by one: in a
batch, a row that needs its blind state makes all others run too. A pass is a row in a call of the block with a non-empty KV
cache; prefill does not count. Everything a method runs counts, such as a description before the first token and the beams of
a search; a row that reads three tokens in one call is one pass. The first token of an answer comes from prefill and does not
count. Milliseconds are of the same captions, prefill included, divided by all their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mgap.backbones.asked_rows import asking
from mgap.benchmarks.base import Benchmark
from mgap.decoding.generate import end_ids, generate, until_end
from mgap.decoding.model import Model
from mgap.io.progress import Progress, report_progress
from mgap.methods.base import Method
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from mgap.run.first_words import Encode, asked_in, encode_rows, using
from mgap.types import Decoding
from research.comparison import counting


@dataclass(frozen=True)
class Price:
    """The cost of captions decoded one by one."""

    tokens: int
    passes: int  # after prefill
    steps: int  # tokens after the first of each caption
    milliseconds: float

    @property
    def forwards(self) -> float | None:
        """Per token, as defined above; None if every caption has one token."""
        return self.passes / self.steps if self.steps else None

    @property
    def milliseconds_a_token(self) -> float:
        return self.milliseconds / self.tokens


def price(
    model: Model,
    method: Method | None,
    shown: Benchmark,
    count: int,
    *,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> Price:
    """The cost of `count` captions, one after the other. The first runs twice and counts once, to leave out one-time work."""
    tokens = steps = 0
    rows = [(sample.image, sample.prompt) for sample in shown.samples][:count]
    batches, decoding = list(encode(model, rows, shown.picture, 1)), Decoding(max_new_tokens=MAX_ANSWER_TOKENS)
    end = end_ids(model.backbone)
    with using(model, method):
        with asking(model.backbone.model, asked_in(rows, shown.picture, *batches[0])):
            generate(model.backbone, batches[0][0], decoding)
        with counting(model, passes) as passed:
            milliseconds = 0.0
            for inputs, done in batches:
                with asking(model.backbone.model, asked_in(rows, shown.picture, inputs, done)):
                    made = generate(model.backbone, inputs, decoding)
                milliseconds += made.milliseconds
                length = len(until_end(made.tokens[0].tolist(), end))
                tokens, steps = tokens + length, steps + length - 1
                report_progress(progress, "prices", done, len(rows))
    return Price(tokens, passed[0], steps, milliseconds)


def passes(states: Tensor, call: Mapping[str, Any]) -> int:
    """Rows in a call of the first block with states [B, T, d]; 0 during prefill."""
    cache = call.get("past_key_values")
    return 0 if cache is None or cache.get_seq_length() == 0 else len(states)
