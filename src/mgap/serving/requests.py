"""What a request may ask for: `mgap_alpha`, a strength of its own (extra_args; `vllm_xargs` over HTTP). Else it is refused.

vLLM loads `PerRequest` by its entry point in every engine, MGAP or not, under both model runners: it has both interfaces.
It changes no logits: it hears of requests, and checks that what was configured is there.
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
from mgap.serving.engine_settings import ALPHA, KEY, OURS, Serving, own_alpha
from mgap.serving.row_strengths import rows_of

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
    """Refuse a request whose own strength would not reach its tokens in this engine."""
    if own_alpha(params.extra_args) is None:
        return
    if Serving.wanted(config) is None:
        raise SettingError(f"{ALPHA} was given, but this engine runs without MGAP: leave it out, or start one with a prior")
    if config.speculative_config is not None and not config.use_v2_model_runner:
        raise SettingError(
            f"{ALPHA} was given, but with speculative decoding vLLM's first model runner does not say which rows are whose: "
            "leave it out, or switch speculation off"
        )
    if params.prompt_logprobs is not None:
        raise SettingError(f"prompt_logprobs have the server's strength: leave out {ALPHA}, or prompt_logprobs")


class PerRequest(*INTERFACES):  # type: ignore[misc]
    """Requests' own strengths, row by row (first model runner); the second one's are heard in `request_rows.py`."""

    def __init__(self, vllm_config: VllmConfig, *where: Any) -> None:
        """`where`: device and whether memory is pinned, or the second runner's states of requests."""
        self.own: dict[int, float] = {}  # by row
        self.is_on = Serving.wanted(vllm_config) is not None
        if self.is_on and plugin.fault:
            raise SettingError(
                f"additional_config asks for {KEY!r}, but {plugin.fault}: put mgap into VLLM_PLUGINS, or leave that unset; "
                "see docs/serving.md for the versions of vLLM"
            )
        self.rows = rows_of(vllm_config)
        self.device = where[0] if isinstance(where[0], torch.device) else None  # None: the second runner
        self.strengths: Tensor | None = None
        self.is_off = False

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """In the front end, before a request is taken; what depends on the engine is `check_request`'s."""
        if own_alpha(sampling_params.extra_args) is not None and plugin.fault:
            raise SettingError(f"{ALPHA} was given, but {plugin.fault} here: put mgap into VLLM_PLUGINS, or leave that unset")

    def is_argmax_invariant(self) -> bool:
        return True  # nothing is done here: vLLM may leave it out

    def apply(self, logits: Tensor, *_: Any) -> Tensor:
        return logits

    def add_request(self, *_: Any) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Before every step: who came, left and moved."""
        if not self.is_on:
            return
        if batch_update is not None:
            process_dict_updates(self.own, batch_update, lambda params, *_: own_alpha(params.extra_args))
            told = [self.own.get(row, self.rows.alpha) for row in range(batch_update.batch_size)]
            self.strengths = torch.tensor(told).to(self.device, non_blocking=True) if self.own else None
            self.is_off = bool(self.own) and not any(told)
        self.rows.arm(self.strengths, is_off=self.is_off)


def watch_requests() -> None:
    """From now on, this process's front end asks `check_request` as well; once is enough."""
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.input_processor import InputProcessor

    def build_both(build: Callable[[Any], Any], processor: Any) -> Callable[[SamplingParams], None]:
        validate = build(processor)

        def both(params: SamplingParams) -> None:
            validate(params)
            try:
                check_request(params, processor.vllm_config)
            except SettingError as error:
                raise VLLMValidationError(str(error)) from error

        return both

    _wrap(InputProcessor, "_build_logits_processors_params_validator", build_both)
    _watch_beams()


def _watch_beams() -> None:
    """Beam search makes requests of its own for every token, without what the request brought along."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.exceptions import VLLMValidationError

    def refuse_own(make: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        if any(key.startswith(OURS) for key in request.vllm_xargs or {}):
            raise VLLMValidationError(f"beam search has the server's strength: leave out {ALPHA}, or use_beam_search")
        return make(request, *args, **kwargs)

    for kind in (ChatCompletionRequest, CompletionRequest):
        _wrap(kind, "to_beam_search_params", refuse_own)


def _wrap(kind: type[Any], name: str, around: Callable[..., Any]) -> None:
    """Put `around(method, self, ...)` in the place of a method, once."""
    method = getattr(kind, name)
    if not hasattr(method, "__wrapped__"):
        setattr(kind, name, wraps(method)(lambda self, *args, **kwargs: around(method, self, *args, **kwargs)))
