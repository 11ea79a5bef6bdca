"""A request may set `mgap_alpha`, its own strength (extra_args; `vllm_xargs` over HTTP). Other keys of ours are refused.

vLLM loads `PerRequest` through its entry point in every engine, with or without MGAP. It has the interfaces of both model
runners. It changes no logits: it tracks requests and checks that a configured MGAP is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as Processor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from mgap.errors import SettingError
from mgap.serving import plugin
from mgap.serving.engine_settings import ALPHA, KEY, PAIR, PAIR_SCHEDULER, PREFIX, Serving, is_paired, own_alpha
from mgap.serving.metrics import count_request
from mgap.serving.pair_membership import Membership
from mgap.serving.row_strengths import row_strengths_of

try:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotProcessor

    INTERFACES: tuple[Any, ...] = (Processor, SlotProcessor)
except ImportError:  # a vLLM without its second model runner
    INTERFACES = (Processor,)

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate


def check_request(params: SamplingParams, config: VllmConfig) -> None:
    """Raise if this engine cannot apply the request's own strength."""
    if Membership.of(params.extra_args) is not None:
        check_pair(params, config)
    alpha, serving = own_alpha(params.extra_args, others=(PAIR,)), Serving.of_engine(config)
    if alpha is None:
        if serving is not None:
            count_request(None)
        return
    if serving is None:
        raise SettingError(f"{ALPHA} was given, but this engine runs without MGAP: leave it out, or start one with a prior")
    if config.speculative_config is not None and not config.use_v2_model_runner:
        raise SettingError(
            f"{ALPHA} was given, but with speculative decoding vLLM's first model runner does not say which rows are whose: "
            "leave it out, or switch speculation off"
        )
    if params.prompt_logprobs is not None:
        raise SettingError(f"prompt_logprobs have the server's strength: leave out {ALPHA}, or prompt_logprobs")
    count_request(alpha)


def check_pair(params: SamplingParams, config: VllmConfig) -> None:
    """Raise where a request of a pair could not be kept in step with the other."""
    if not is_paired(config):
        raise SettingError(f"{PAIR} was given, but this engine keeps no requests in step: start it with {PAIR_SCHEDULER}")
    if params.n != 1 or params.repetition_penalty != 1 or (params.temperature > 0 and params.seed is None):
        raise SettingError(f"{PAIR}: both requests must choose alike: n=1, no repetition_penalty, and greedy or the same seed")
    if params.temperature > 0 and config.device_config.device_type == "cpu":
        raise SettingError(
            f"{PAIR}: on a CPU vLLM cannot take a drawn number back, which a prompt in pieces needs: decode greedily"
        )


class PerRequest(*INTERFACES):  # type: ignore[misc]
    """Requests' own strengths by row, for the first model runner; `request_rows.py` serves the second."""

    def __init__(self, vllm_config: VllmConfig, *where: Any) -> None:
        """`where`: the device and whether memory is pinned (first runner), or the request states (second runner)."""
        self.own: dict[int, float] = {}  # by row
        self.is_on = Serving.of_engine(vllm_config) is not None
        if self.is_on and plugin.fault:
            raise SettingError(
                f"additional_config asks for {KEY!r}, but {plugin.fault}: put mgap into VLLM_PLUGINS, or leave that unset; "
                "see docs/serving.md for the versions of vLLM"
            )
        self.rows = row_strengths_of(vllm_config)
        self.is_paired, self.members = is_paired(vllm_config), dict[int, Membership]()  # by row
        self.device = where[0] if isinstance(where[0], torch.device) else None  # None: the second runner
        self.strengths: Tensor | None = None
        self.is_off = self.has_plain = False
        self.size, self.server = 0, self.rows.alpha  # rows, and the strength of those without their own

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check in the front end, before a request is accepted; `check_request` checks what depends on the engine."""
        if own_alpha(sampling_params.extra_args, others=(PAIR,)) is not None and plugin.fault:
            raise SettingError(f"{ALPHA} was given, but {plugin.fault} here: put mgap into VLLM_PLUGINS, or leave that unset")

    def is_argmax_invariant(self) -> bool:
        return True  # `apply` does nothing, so vLLM may skip it

    def apply(self, logits: Tensor, *_: Any) -> Tensor:
        return logits

    def add_request(self, *_: Any) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Before every step: apply requests that were added, removed or moved."""
        if self.is_paired:
            if batch_update is not None:
                process_dict_updates(self.members, batch_update, lambda params, *_: Membership.of(params.extra_args))
            self.rows.pairs = dict(self.members)
        if not self.is_on:
            return
        if batch_update is not None:
            process_dict_updates(self.own, batch_update, lambda params, *_: own_alpha(params.extra_args, others=(PAIR,)))
            self.size = batch_update.batch_size
        if batch_update is not None or self.server != self.rows.alpha:  # the server's strength may change, too
            self.server = self.rows.alpha
            alphas = [self.own.get(row, self.server) for row in range(self.size)]
            self.strengths = torch.tensor(alphas).to(self.device, non_blocking=True) if self.own else None
            self.is_off, self.has_plain = bool(self.own) and not any(alphas), not all(alphas)
        self.rows.set_next(self.strengths, is_off=self.is_off, has_plain=self.has_plain)


def watch_requests() -> None:
    """Make this process's front end call `check_request` too. Repeated calls change nothing."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.input_processor import InputProcessor

    def validate_both(validate: Callable[..., Any], processor: Any, params: Any, *args: Any) -> Any:
        validated = validate(processor, params, *args)
        if isinstance(params, SamplingParams):
            try:
                check_request(params, processor.vllm_config)
            except SettingError as error:
                raise VLLMValidationError(str(error)) from error
        return validated  # since 0.32 it is of use to its caller

    _wrap(InputProcessor, "_validate_params", validate_both)
    _watch_beams()


def _watch_beams() -> None:
    """Refuse own strengths in beam search: it makes new requests for every token and drops the original's extra arguments."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.exceptions import VLLMValidationError

    def refuse_own(make: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        if any(key.startswith(PREFIX) for key in request.vllm_xargs or {}):
            raise VLLMValidationError(f"beam search has the server's strength: leave out {ALPHA}, or use_beam_search")
        return make(request, *args, **kwargs)

    for kind in (ChatCompletionRequest, CompletionRequest):
        _wrap(kind, "to_beam_search_params", refuse_own)


def _wrap(kind: type[Any], name: str, around: Callable[..., Any]) -> None:
    """Replace a method by `around(method, self, ...)`, once."""
    method = getattr(kind, name)
    if not hasattr(method, "__wrapped__"):
        setattr(kind, name, wraps(method)(lambda self, *args, **kwargs: around(method, self, *args, **kwargs)))
