"""The loop of static and compiled decoding: choose a token, run the captured step, never wait for the card.

transformers' `generate` asks the card after every token whether all rows have ended, and prepares every step anew. Here the
question is answered two tokens late: the card always has work, and at most two steps are run for nothing. Greedy and sampling,
with its own logits processors; beams and drafts are generate's. A second branch is rows of the same step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mgap.backbones.base import Backbone
from mgap.backbones.clock import NEXT
from mgap.backbones.head import Head
from mgap.backbones.token_rows import ALONG
from mgap.decoding.attach import attached
from mgap.decoding.fast.captured_step import Notify, step_for, uncapturable
from mgap.decoding.generate import Generated, generation_config, seeded
from mgap.decoding.model_lock import lock_of
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Method, Seam
from mgap.methods.kinds.branch import PairedMethod
from mgap.methods.kinds.main_rows import row_split_of
from mgap.methods.kinds.paired_forward import PairedCache
from mgap.types import Decoding, Mode

MODES = frozenset({Mode.GREEDY, Mode.SAMPLE, Mode.BATCH, Mode.SEQUENCES, Mode.STREAM, Mode.STATIC, Mode.COMPILE})
LAG = 2  # tokens


def is_ours(backbone: Backbone, modes: frozenset[Mode]) -> bool:
    """Whether this loop decodes in these modes with what is attached; otherwise transformers' own does."""
    on = [attachment.method for attachment in attached(backbone.model)]
    return Mode.STATIC in modes and modes <= MODES and all(map(_acts_outside, on)) and not uncapturable(backbone)


def _acts_outside(method: Method) -> bool:
    """Whether a method acts on what comes after the text decoder, and its branch, if it has one, is rows of the same step."""
    if method.seam is Seam.BRANCH:
        return isinstance(method, PairedMethod) and method.branch_mode == "batched"
    return method.seam is Seam.HEAD


_heads: WeakKeyDictionary[nn.Module, Head] = WeakKeyDictionary()


def head_of(backbone: Backbone) -> Head:
    """The head and what the model does to its output; measured once, and not while a trace is kept, as that runs the model."""
    if backbone.model not in _heads:
        with row_split_of(backbone.model).paused():
            _heads[backbone.model] = backbone.probe_head()
    return _heads[backbone.model]


@dataclass
class PrefilledLoop:
    """A prompt that has been read; a branch's rows stand behind the caller's."""

    logits: Tensor  # [B, vocab] float, of the first token
    ids: Tensor  # [B, T]
    mask: Tensor  # [rows, T]
    positions: Tensor  # [..., rows, 1] of the last tokens
    cache: DynamicCache

    @property
    def each(self) -> int:
        """Rows of the step for a row of the caller's."""
        return len(self.mask) // len(self.ids)

    def repeat(self, times: int) -> None:
        """Several answers a row: all but the cache, which `FixedCache.fill` repeats."""
        self.logits, self.ids = (part.repeat_interleave(times, 0) for part in (self.logits, self.ids))
        if isinstance(self.cache, PairedCache):
            self.cache.kept = {key: value.repeat_interleave(times, 0) for key, value in self.cache.kept.items()}


def begin(backbone: Backbone, inputs: dict[str, Tensor], cache: DynamicCache | None) -> PrefilledLoop:
    """Run the prompt as it is, with whatever is attached; what a shared prefill has read already is not run again."""
    if any(attachment.method.seam is Seam.BRANCH for attachment in attached(backbone.model)):
        return _begin_paired(backbone, inputs)
    given = dict(inputs)
    positions = given.pop("position_ids", None)
    ids, mask = given["input_ids"], given["attention_mask"]
    if cache is None or positions is None:
        positions, cache = backbone.positions(given), DynamicCache(config=backbone.config)
    else:
        rest = positions.shape[-1]
        given.update({key: given[key][:, -rest:] for key in ALONG if key in given and key != "attention_mask"})
    out = backbone.model(**given, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return PrefilledLoop(out.logits[:, -1].float(), ids, mask, positions[..., -1:], cache)


def _begin_paired(backbone: Backbone, inputs: dict[str, Tensor]) -> PrefilledLoop:
    """A branch joins inside `generate`, which encodes pictures before the first forward: one token of it."""
    config = generation_config(backbone, Decoding(max_new_tokens=1))
    config.output_logits = True
    out = backbone.model.generate(**inputs, generation_config=config)
    cache: PairedCache = out.past_key_values
    (rows,) = cache.rows
    return PrefilledLoop(out.logits[0].float(), inputs["input_ids"], rows.whole_mask(), rows.positions, cache)


class TokenChoice:
    """From logits to tokens, as `generate` with the same configuration chooses them."""

    def __init__(self, config: GenerationConfig, ids: Tensor) -> None:
        self.is_sampling, self.pad = bool(config.do_sample), config.pad_token_id
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        self.ends = torch.tensor([end for end in ends if end is not None], device=ids.device)
        self.finished = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        self.processors = LogitsProcessorList()
        self.ids: Tensor | None = None  # [B, T], where what was said matters
        if config.repetition_penalty != 1.0:
            self.ids = ids
            self.processors.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
        if self.is_sampling and config.temperature != 1.0:
            self.processors.append(TemperatureLogitsWarper(config.temperature))
        if self.is_sampling and config.top_k:
            self.processors.append(TopKLogitsWarper(config.top_k))
        if self.is_sampling and config.top_p < 1.0:
            self.processors.append(TopPLogitsWarper(config.top_p))

    def __call__(self, logits: Tensor) -> Tensor:
        """The next token of each row [B] from its logits [B, vocab]; rows that have ended are filled up."""
        scores = self.processors(self.ids, logits)
        token = torch.multinomial(scores.softmax(-1), 1)[:, 0] if self.is_sampling else scores.argmax(-1)
        if len(self.ends):
            token = token.masked_fill(self.finished, self.pad)
            self.finished |= torch.isin(token, self.ends)
        if self.ids is not None:
            self.ids = torch.cat([self.ids, token.unsqueeze(-1)], 1)
        return token


class StepWatch:
    """Reads what the card says without stopping it: a report is looked at when `LAG` more have been sent off."""

    def __init__(self, like: Tensor) -> None:
        self.room = torch.empty(LAG + 1, *like.shape, dtype=like.dtype, pin_memory=True) if like.is_cuda else None
        self.sent: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self.count = 0

    def send(self, report: Tensor) -> None:
        if self.room is None:
            self.sent.append((report, None))
            return
        there, event = self.room[self.count % len(self.room)], torch.cuda.Event()
        there.copy_(report, non_blocking=True)
        event.record()
        self.sent.append((there, event))
        self.count += 1

    def read(self, *, all_of_it: bool = False) -> list[Tensor]:
        """The reports that are due, oldest first."""
        due = []
        while len(self.sent) > (0 if all_of_it or self.room is None else LAG):
            report, event = self.sent.popleft()
            if event is not None:
                event.synchronize()
            due.append(report.clone())  # its room is for a later one
        return due


def generate_captured(
    backbone: Backbone,
    inputs: dict[str, Tensor],
    decoding: Decoding,
    *,
    head: Head,
    notify: Notify,
    cache: DynamicCache | None = None,
    say: Callable[[Tensor], None] | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Generated:
    """Decode rows through the captured step, from their prompts or from a cache that holds their beginnings.

    `say` hears the tokens [B] as they come, `is_stopped` is asked before each.
    """
    config, times = generation_config(backbone, decoding), decoding.num_return_sequences
    started = time.perf_counter()
    with lock_of(backbone.model), seeded(decoding, backbone.device), torch.no_grad():
        prompt = begin(backbone, inputs, cache)
        rows, each, length = len(prompt.ids) * times, prompt.each, prompt.mask.shape[1] + decoding.max_new_tokens
        step = step_for(backbone, prompt.cache, prompt.positions, rows * each, length, compiled=decoding.compile, notify=notify)
        step.start(prompt.cache, prompt.mask, prompt.positions, times)
        prompt.repeat(times)
        choose = TokenChoice(config, prompt.ids)
        watch = StepWatch(torch.zeros(rows + 1, dtype=torch.long, device=backbone.device))
        logits, said = prompt.logits, list[Tensor]()
        backbone.clock.turn(NEXT)
        is_over = False
        while not is_over and len(said) < decoding.max_new_tokens and not (said and is_stopped()):
            if said:
                state = step.run(said[-1].repeat(each))
                logits = read_head(backbone, head, state, prompt.cache, rows, each)
            said.append(choose(logits))
            watch.send(torch.cat([said[-1], choose.finished.all().long().unsqueeze(0)]))
            is_over = _pass_on(watch.read(), say)
        _pass_on(watch.read(all_of_it=True), None if is_over else say)
    tokens = torch.stack(said, 1).cpu()
    return Generated(tokens, None, 1000 * (time.perf_counter() - started))


def read_head(backbone: Backbone, head: Head, state: Tensor, cache: DynamicCache, rows: int, each: int) -> Tensor:
    """Logits [B, vocab] float of a step's state, with whatever acts at the head; a branch's are merged with the main ones."""
    if not isinstance(cache, PairedCache):
        return head.post(head.module(state))[:rows, -1].float()
    if cache.merge is None:
        raise UnsupportedDecoding("a branch that runs beside the main rows does not work with static decoding: leave it out")
    row_split, cache.steps = row_split_of(backbone.model), cache.steps + 1
    row_split.main = rows
    try:
        logits = head.post(head.module(state))[: rows * each, -1].float()
    finally:
        row_split.main = None
    return cache.merge(logits, cache)


def _pass_on(reports: list[Tensor], say: Callable[[Tensor], None] | None) -> bool:
    """Pass tokens on; whether all rows had ended at one of them."""
    for report in reports:
        if say is not None:
            say(report[:-1])
        if bool(report[-1]):
            return True
    return False
