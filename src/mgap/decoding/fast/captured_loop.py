"""The loop of static and compiled decoding: choose a token, run the captured step, never wait for the GPU.

transformers' `generate` synchronises with the GPU after every token to see whether all rows have ended, and prepares every step
anew. Here the loop learns it two tokens late: the GPU always has work, and at most two steps are wasted. Supports greedy
decoding and sampling with transformers' logits processors; beams and drafts stay with `generate`. A second branch is more rows
of the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mgap.backbones.base import Backbone
from mgap.backbones.checked_generate import ends_of, non_finite
from mgap.backbones.checkpoint_faults import checkpoint_faults
from mgap.backbones.clock import NEXT
from mgap.backbones.decoding_limits import check_memory, new_tokens_that_fit
from mgap.backbones.head import Head
from mgap.backbones.step_watch import StepWatch
from mgap.backbones.token_rows import TOKEN_KEYS
from mgap.decoding.attach import acting, attached
from mgap.decoding.fast.captured_step import Notify, step_for, uncapturable
from mgap.decoding.generate import Generated, generation_config, seeded
from mgap.decoding.model_lock import lock_of
from mgap.decoding.ties import TieCounter
from mgap.errors import UnsupportedDecoding
from mgap.methods.base import Method, Seam
from mgap.methods.kinds.branch import PairedMethod
from mgap.methods.kinds.main_rows import row_split_of
from mgap.methods.kinds.paired_forward import PairedCache
from mgap.types import Decoding, Mode

EXPONENT = 0x7F800000  # all ones in a float32 that is NaN or infinite
MODES = frozenset({Mode.GREEDY, Mode.SAMPLE, Mode.BATCH, Mode.SEQUENCES, Mode.STREAM, Mode.STATIC, Mode.COMPILE})


def uses_captured_loop(backbone: Backbone, modes: frozenset[Mode], *, is_traced: bool = False) -> bool:
    """Whether this loop decodes in these modes with the attached methods; otherwise transformers' `generate` does.

    A method inside the decoder is captured, not compiled: inductor does not guard hooks. Its trace is what its hooks see, and
    a replay runs none.
    """
    active = [attachment.method for attachment in attached(backbone.model)]
    is_inside = any(method.capturable for method in active)
    if Mode.STATIC not in modes or not modes <= MODES or (is_inside and (is_traced or Mode.COMPILE in modes)):
        return False
    return all(method.capturable or _acts_after_decoder(method) for method in active) and not uncapturable(backbone)


def _acts_after_decoder(method: Method) -> bool:
    """Whether a method acts only after the text decoder, and any branch it has runs as rows of the same step."""
    if method.seam is Seam.BRANCH:
        return isinstance(method, PairedMethod) and method.branch_mode == "batched"
    return method.seam is Seam.HEAD


_heads: WeakKeyDictionary[nn.Module, Head] = WeakKeyDictionary()


def head_of(backbone: Backbone) -> Head:
    """The model's head and what the model does to its output; probed once, before any trace, since probing runs the model."""
    if backbone.model not in _heads:
        with row_split_of(backbone.model).paused():
            _heads[backbone.model] = backbone.probe_head()
    return _heads[backbone.model]


@dataclass
class PrefilledPrompt:
    """The state after the prefill; a branch's rows follow the caller's."""

    logits: Tensor  # [B, vocab] float, of the first token
    ids: Tensor  # [B, T]
    mask: Tensor  # [rows, T]
    positions: Tensor  # [..., rows, 1] of the last tokens
    cache: DynamicCache

    @property
    def branches(self) -> int:
        """Rows of the step per row of the caller: 1, or more with a branch."""
        return len(self.mask) // len(self.ids)

    def repeat(self, times: int) -> None:
        """Repeat rows for several answers each; `FixedCache.fill` repeats the cache."""
        self.logits, self.ids = (part.repeat_interleave(times, 0) for part in (self.logits, self.ids))
        if isinstance(self.cache, PairedCache):
            self.cache.row_state = {key: value.repeat_interleave(times, 0) for key, value in self.cache.row_state.items()}


def prefill(backbone: Backbone, inputs: dict[str, Tensor], cache: DynamicCache | None) -> PrefilledPrompt:
    """Run the prompt with the attached methods; skip the part that a shared prefill has already put into the cache."""
    if any(attachment.method.seam is Seam.BRANCH for attachment in attached(backbone.model)):
        return _prefill_paired(backbone, inputs)
    call = dict(inputs)
    positions = call.pop("position_ids", None)
    ids, mask = call["input_ids"], call["attention_mask"]
    if cache is None or positions is None:
        positions, cache = backbone.positions(call), DynamicCache(config=backbone.config)
    else:
        rest = positions.shape[-1]
        call.update({key: call[key][:, -rest:] for key in TOKEN_KEYS if key in call and key != "attention_mask"})
    out = backbone.model(**call, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return PrefilledPrompt(out.logits[:, -1].float(), ids, mask, positions[..., -1:], cache)


def _prefill_paired(backbone: Backbone, inputs: dict[str, Tensor]) -> PrefilledPrompt:
    """Prefill by generating one token: a branch joins inside `generate`, which encodes pictures before the first forward."""
    config = generation_config(backbone, Decoding(max_new_tokens=1))
    config.output_logits = True
    out = backbone.model.generate(**inputs, generation_config=config)
    cache: PairedCache = out.past_key_values
    (rows,) = cache.rows
    return PrefilledPrompt(out.logits[0].float(), inputs["input_ids"], rows.whole_mask(), rows.positions, cache)


class TokenChoice:
    """Chooses tokens from logits as `generate` does with the same configuration."""

    def __init__(self, config: GenerationConfig, ids: Tensor, ties: TieCounter | None = None) -> None:
        self.is_sampling, self.pad = bool(config.do_sample), config.pad_token_id
        self.ends = torch.tensor(ends_of(config), device=ids.device)
        self.finished = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        self.processors = LogitsProcessorList()
        self.ids: Tensor | None = None  # [B, T], only if a processor needs the tokens so far
        self.best = torch.zeros(len(ids), device=ids.device)  # [B] the best scores of the last choice
        if config.repetition_penalty != 1.0:
            self.ids = ids
            self.processors.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
        if self.is_sampling and config.temperature != 1.0:
            self.processors.append(TemperatureLogitsWarper(config.temperature))
        if self.is_sampling and config.top_k:
            self.processors.append(TopKLogitsWarper(config.top_k))
        if self.is_sampling and config.top_p < 1.0:
            self.processors.append(TopPLogitsWarper(config.top_p))
        if self.is_sampling and config.min_p:
            self.processors.append(MinPLogitsWarper(config.min_p))
        if ties is not None:
            self.processors.append(ties)

    def __call__(self, logits: Tensor) -> Tensor:
        """The next token of each row [B] from its logits [B, vocab]; rows that have ended get padding."""
        scores = self.processors(self.ids, logits)
        if self.is_sampling:  # a row that is not finite is reported; drawing from it would bring the device down first
            self.best, token = scores.amax(-1), torch.multinomial(scores.softmax(-1).nan_to_num(1.0), 1)[:, 0]
        else:
            self.best, token = scores.max(-1)
        if len(self.ends):
            token = token.masked_fill(self.finished, self.pad)
            self.finished |= torch.isin(token, self.ends)
        if self.ids is not None:
            self.ids = torch.cat([self.ids, token.unsqueeze(-1)], 1)
        return token


class StepReports:
    """Reads the steps on the host: emits their tokens, sees which rows have ended, and checks their best scores."""

    def __init__(self, backbone: Backbone, rows: int, ends: list[int], on_tokens: Callable[[Tensor], None] | None) -> None:
        self.backbone, self.ends, self.on_tokens = backbone, set(ends), on_tokens
        self.running, self.step = set(range(rows)), 0

    def read(self, reports: list[Tensor]) -> bool:
        """Read reports [2, B], tokens and the bits of their best scores; stop and return True once all rows have ended."""
        for report in reports:
            tokens, bits = report.tolist()
            self.step += 1
            for row in self.running:
                if bits[row] & EXPONENT == EXPONENT:
                    best = float(report[1, row].int().view(torch.float32))
                    raise non_finite(acting(self.backbone.model), best, self.step, self.backbone.model)
            if self.on_tokens is not None:
                self.on_tokens(report[0])
            self.running = {row for row in self.running if tokens[row] not in self.ends}
            if not self.running:
                return True
        return False


def generate_captured(
    backbone: Backbone,
    inputs: dict[str, Tensor],
    decoding: Decoding,
    *,
    head: Head,
    notify: Notify,
    cache: DynamicCache | None = None,
    ties: TieCounter | None = None,
    on_tokens: Callable[[Tensor], None] | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Generated:
    """Decode rows through the captured step, from their prompts or from a cache that holds their prefixes.

    Calls `on_tokens` with the tokens [B] of every step, and `is_stopped` before each step.
    """
    config, times = generation_config(backbone, decoding), decoding.num_return_sequences
    longest = new_tokens_that_fit(backbone, inputs, decoding.max_new_tokens)
    check_memory(backbone, *inputs["input_ids"].shape)
    started = time.perf_counter()
    with lock_of(backbone.model), seeded(decoding, backbone.device), torch.no_grad(), checkpoint_faults(backbone):
        prompt = prefill(backbone, inputs, cache)
        rows, branches = len(prompt.ids) * times, prompt.branches
        size = rows * branches, prompt.mask.shape[1] + longest
        step = step_for(backbone, prompt.cache, prompt.positions, *size, compiled=decoding.compile, notify=notify)
        step.start(prompt.cache, prompt.mask, prompt.positions, times)
        prompt.repeat(times)
        choose = TokenChoice(config, prompt.ids, ties)
        watch = StepWatch(torch.zeros(2, rows, dtype=torch.long, device=backbone.device))
        reports = StepReports(backbone, rows, ends_of(config), on_tokens)
        logits, tokens = prompt.logits, list[Tensor]()
        backbone.clock.switch(NEXT)
        is_over = False
        while not is_over and len(tokens) < longest and not (tokens and is_stopped()):
            if tokens:
                state = step.run(tokens[-1].repeat(branches))
                logits = read_head(backbone, head, state, prompt.cache, rows, branches)
            tokens.append(choose(logits))
            watch.send(torch.stack([tokens[-1], choose.best.view(torch.int32).long()]))
            is_over = reports.read(watch.read())
        reports.read([] if is_over else watch.read(flush=True))
    return Generated(torch.stack(tokens, 1).cpu(), None, 1000 * (time.perf_counter() - started))


def read_head(backbone: Backbone, head: Head, state: Tensor, cache: DynamicCache, rows: int, branches: int) -> Tensor:
    """Logits [B, vocab] float of a step's state, with the hooks at the head; branch logits are merged into the main ones."""
    if not isinstance(cache, PairedCache):
        return head.post(head.module(state))[:rows, -1].float()
    if cache.merge is None:
        raise UnsupportedDecoding("a branch that runs beside the main rows does not work with static decoding: leave it out")
    row_split, cache.steps = row_split_of(backbone.model), cache.steps + 1
    row_split.main = rows
    try:
        logits = head.post(head.module(state))[: rows * branches, -1].float()
    finally:
        row_split.main = None
    return cache.merge(logits, cache)
