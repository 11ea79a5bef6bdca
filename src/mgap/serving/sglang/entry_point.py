"""SGLang's entry point (`sglang.srt.plugins`). Each hook imports its part when it is called.

SGLang calls `register` in every process, logs what a plugin raises, and goes on without it. So an unsuitable SGLang is found
here, and an engine that asks for MGAP is stopped by the one hook that is left, with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from inspect import signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Hook = Callable[..., Any]
SRT = "sglang.srt"
SERVER = f"{SRT}.server_args.ServerArgs.check_server_args"
UPDATER = f"{SRT}.model_executor.model_runner_components.weight_updater.WeightUpdater"
fault: str | None = None  # why MGAP cannot run in this process


def register() -> None:
    """Register the hooks; SGLang applies them. Nothing changes for engines that do not ask for MGAP."""
    global fault
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    try:
        for target, names in REQUIRED.items():
            require(target, names)
    except (ImportError, AttributeError, TypeError) as error:
        fault = f"this SGLang is not one that mgap knows ({error})"
        logging.getLogger("sglang.mgap").warning("MGAP cannot be used here: %s", fault)
    HookRegistry.register(SERVER, check_server, HookType.BEFORE)
    if fault is None:
        for target, (hook, kind) in HOOKS.items():
            HookRegistry.register(target, hook, HookType(kind))


def require(target: str, names: tuple[str, ...]) -> None:
    """Raise unless SGLang has this, and it takes arguments of these names."""
    found = signature(resolve_name(target)).parameters
    for name in names:
        if name not in found:
            raise TypeError(f"{target} takes no {name}")


def check_server(args: Any) -> None:
    from mgap.serving.sglang.server_settings import refuse_server

    refuse_server(args, fault)


def attach_to_model(_: None, runner: Any) -> None:
    from mgap.serving.sglang.model_loading import attach_to_runner

    attach_to_runner(runner)


def read_weights(weights: Iterator[tuple[str, Tensor]], _loader: Any, config: Any, model: Any) -> Any:
    from mgap.serving.engine_settings import KEY
    from mgap.serving.prior_check import described_weights

    is_asked = getattr(config.hf_config, KEY, None) is not None
    return described_weights(model, weights) if is_asked else None  # None: as they are


def note_strengths(made: Any, _kind: type[Any], batch: Any, runner: Any, **_: Any) -> None:
    from mgap.serving.sglang.batch_strengths import note_requests

    note_requests(made, batch, runner.model)


def begin_forward(runner: Any, forward_batch: Any, *_: Any, **__: Any) -> None:
    from mgap.serving.sglang.batch_strengths import begin_batch

    begin_batch(forward_batch, runner.model)


def check_tokenized(made: Any, manager: Any, *_: Any, **__: Any) -> None:
    from mgap.serving.sglang.request_checks import check_tokenized_request

    check_tokenized_request(made, manager.server_args)


def refuse_weights(update: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    from mgap.serving.sglang.batch_strengths import strengths_of

    if strengths_of(updater.get_model()) is None:
        return update(updater, *args, **kwargs)
    return False, "MGAP has measured the head of this engine: start another one for new weights, or leave mgap out"


HOOKS: dict[str, tuple[Hook, str]] = {
    f"{SRT}.model_loader.loader.DefaultModelLoader._get_all_weights": (read_weights, "after"),
    f"{SRT}.model_executor.model_runner.ModelRunner.load_model": (attach_to_model, "after"),
    f"{SRT}.model_executor.model_runner.ModelRunner.forward": (begin_forward, "before"),
    f"{SRT}.model_executor.forward_batch_info.ForwardBatch.init_new": (note_strengths, "after"),
    f"{SRT}.managers.tokenizer_manager.TokenizerManager._create_tokenized_object": (check_tokenized, "after"),
    f"{UPDATER}.update_weights_from_disk": (refuse_weights, "around"),
    f"{UPDATER}.update_weights_from_tensor": (refuse_weights, "around"),
    f"{UPDATER}.update_weights_from_ipc": (refuse_weights, "around"),
    f"{UPDATER}.load_weights_from_distributed": (refuse_weights, "around"),
}
PROCESSOR = f"{SRT}.layers.logits_processor.LogitsProcessor"
REQUIRED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(HOOKS, ()),
    f"{SRT}.model_executor.forward_batch_info.ForwardBatch.init_new": ("batch", "model_runner"),
    f"{SRT}.model_executor.model_runner.ModelRunner.forward": ("forward_batch",),
    f"{PROCESSOR}._get_logits": ("hidden_states", "lm_head", "logits_metadata", "use_logits_buffer"),
    f"{PROCESSOR}._copy_logits_to_buffer": ("logits", "logits_metadata", "use_buffer"),
    f"{PROCESSOR}._get_pruned_states": ("hidden_states",),
    f"{SRT}.layers.logits_processor.should_apply_lm_head_quant_method": (),
    f"{SRT}.model_executor.runner_utils.capture_mode.get_is_capture_mode": (),
    f"{SRT}.arg_groups.model_override_base.resolving_view": (),
}
