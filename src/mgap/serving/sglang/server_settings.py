"""The settings of an engine that SGLang starts, and refusals of engines in which MGAP cannot be exact.

SGLang has no arguments for plugins. It hands the keys of `--json-model-override-args` to every process of an engine, and
ignores those that it does not know: ours is "mgap".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mgap.errors import SettingError
from mgap.serving.engine_settings import KEY, Serving

WHERE = "--json-model-override-args"
REFUSED: tuple[tuple[str, Callable[[Any], Any], str], ...] = (  # what is given, whether it is on, why not
    ("--speculative-algorithm", lambda c: c.speculative_algorithm is not None,
     "rows of drafted tokens are not told apart by request"),
    ("--dllm-algorithm", lambda c: c.dllm_algorithm is not None, "diffusion models do not decode token by token"),
    ("--is-embedding", lambda c: c.is_embedding, "MGAP acts on generated tokens"),
    ("--enable-mis", lambda c: c.enable_mis, "scores of several items have rows that belong to no request's next token"),
    ("--pp-size", lambda c: c.pp_size > 1, "the input embedding, by which the prior is checked, is not where the head is"),
    ("--attn-dp-size or --enable-dp-attention", lambda c: c.attn_dp_size > 1 or c.enable_dp_attention,
     "ranks have different requests, and must call the head together"),
    ("--enable-lora", lambda c: c.enable_lora or c.lora_paths, "an adapter may change the head from request to request"),
    ("--enable-torch-compile", lambda c: c.enable_torch_compile, "a compiled step would keep its first strengths"),
    ("--enable-two-batch-overlap", lambda c: c.enable_two_batch_overlap, "two batches would share one set of strengths"),
    ("--enable-pdmux", lambda c: c.enable_pdmux, "two batches would share one set of strengths"),
    ("--disaggregation-mode", lambda c: c.disaggregation_mode != "null",
     "the first token comes from another server, whose strengths are not known here"),
    ("--startup-weight-load-mode overlap", lambda c: c.startup_weight_load_mode == "overlap",
     "the head is measured before its weights are there"),
    ("--grpc-mode", lambda c: c.grpc_mode or c.smg_grpc_mode or c.grpc_port, "requests would not be checked before they run"),
    ("--device", lambda c: str(c.device).partition(":")[0] not in ("cuda", "cpu"), "mgap knows CUDA devices and CPUs"),
)  # fmt: skip


def serving_of(args: Any) -> Serving | None:
    """The settings in a server's arguments; None if they do not ask for MGAP."""
    given = json.loads(args.json_model_override_args or "{}")
    asked = given.get(KEY) if isinstance(given, dict) else None
    for name, reason in (("log_every", "in CUDA graphs nothing is counted"), ("reload", "a prior is chosen at the start")):
        if isinstance(asked, dict) and name in asked:
            raise SettingError(f"{WHERE} {KEY}: {name} is for vLLM; in SGLang {reason}, so leave it out")
    return None if asked is None else Serving.of(asked, WHERE)


def refuse_server(args: Any, fault: str | None) -> None:
    """Raise for engines that ask for MGAP and would bypass it, or in which it is not known to be exact."""
    if serving_of(args) is None:
        return
    if fault:
        raise SettingError(f"{WHERE} asks for {KEY!r}, but {fault}: see docs/sglang.md for the versions of SGLang")
    from sglang.srt.arg_groups.model_override_base import resolving_view

    config = resolving_view(args)
    for option, is_on, reason in REFUSED:
        if is_on(config):
            raise SettingError(f"MGAP cannot be used with {option}: {reason}; leave one of them out")
