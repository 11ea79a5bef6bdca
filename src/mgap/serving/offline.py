"""Start, query and shut down vLLM's offline engine. A process has one at a time."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mgap.errors import MgapError, ModelError, NonFiniteScores, PromptError, SettingError, did_you_mean, one_line
from mgap.serving.engine_settings import EXTENSION, KEY

SET_BY_RUN = {  # engine options that a run sets itself, with the key that decides them
    "model": "model",
    "revision": "revision",
    "trust_remote_code": "trust_remote_code",
    "tokenizer": "model",
    "runner": "engine",
    "worker_extension_cls": "engine",
    "skip_tokenizer_init": "engine",
}
ENVIRONMENT = {  # of vLLM; what is set already stays
    "VLLM_LOGGING_LEVEL": "WARNING",  # it logs dozens of lines
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # and would to standard output, where a run prints its scores
    "VLLM_RAISE_ON_LOGIT_NANS": "1",  # else they become a token
}
NANS = "NaNs detected in logits"  # as vLLM says it


def check_options(options: Mapping[str, Any]) -> None:
    """Raise on options that the user may not set. Needs no vLLM."""
    for name in options:
        if name in SET_BY_RUN:
            raise SettingError(f"engine_options {name}: the run's key {SET_BY_RUN[name]} decides on it; leave it out here")
    if options.get("data_parallel_size", 1) != 1:
        raise SettingError(
            "engine_options data_parallel_size: start one process a copy instead, each on its own cards and with its share "
            "of the run, such as CUDA_VISIBLE_DEVICES=0 mgap run ... --out DIR --shard 0/2"
        )
    additional = options.get("additional_config", {})
    if not isinstance(additional, Mapping) or KEY in additional:
        raise SettingError(
            f"engine_options additional_config={additional!r}: the run's methods set {KEY}; give other keys only"
        )


def require_options(options: Mapping[str, Any]) -> None:
    """Raise on options that this vLLM does not have. Imports vLLM, which takes seconds."""
    _prepare()
    from vllm.engine.arg_utils import EngineArgs

    available = [f.name for f in fields(EngineArgs)]
    for name in options:
        if name not in available:
            raise SettingError(f"vLLM has no engine option {name!r}{did_you_mean(name, available)}")


@dataclass(frozen=True)
class EngineRecipe:
    """The arguments of an engine, without the method."""

    model: str  # as the user named it
    options: Mapping[str, Any]  # of vllm.LLM
    dtype: str
    revision: str | None = None
    trust_remote_code: bool = False

    def start(self, serving: Mapping[str, Any]) -> OfflineEngine:
        """Start an engine with MGAP set to `serving`; without MGAP if that is empty."""
        from mgap.serving.checkpoint import servable

        _prepare()
        from vllm import LLM
        from vllm.exceptions import VLLMError

        additional = dict(self.options.get("additional_config", {}))
        arguments: dict[str, Any] = {
            "limit_mm_per_prompt": {"image": 1},
            "dtype": self.dtype,
            **self.options,
            "model": str(servable(self.model)),
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
            "worker_extension_cls": EXTENSION,
            "additional_config": {**additional, KEY: dict(serving)} if serving else additional,
        }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # torch warns vLLM
                return OfflineEngine(LLM(**arguments), dict(serving))
        except MgapError:
            raise
        except (VLLMError, ValueError, RuntimeError, OSError, TypeError, AttributeError, AssertionError) as error:
            reason = one_line(error, 400)
            raise ModelError(f"{self.model}: vLLM does not start with it ({reason}); its own lines above say more") from error


class OfflineEngine:
    """A running engine and its settings of MGAP."""

    def __init__(self, llm: Any, serving: dict[str, Any]) -> None:
        self.llm, self.serving = llm, serving

    def describe(self, name: str) -> dict[str, Any]:
        """The loaded model, in the form of `run.job.describe`."""
        identity = next(identity for identity in self.llm.collective_rpc("mgap_identity") if identity is not None)
        config = self.llm.model_config
        kind = {"family": config.hf_config.model_type, "dtype": str(config.dtype).removeprefix("torch.")}
        return {**identity, "name": name, **kind}

    @property
    def device(self) -> str:
        return str(self.llm.llm_engine.vllm_config.device_config.device_type)

    def generate(self, prompts: Sequence[Mapping[str, Any]], fields: Sequence[Mapping[str, Any]]) -> list[list[list[int]]]:
        """Token ids by prompt and sequence, with the token that ended each. `fields` are SamplingParams', one set a prompt."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError, VLLMServerError

        params = [SamplingParams(**each) for each in fields]
        try:
            outputs = self.llm.generate(list(prompts), params, use_tqdm=False)
        except MgapError:
            raise
        except (VLLMClientError, ValueError) as error:  # from one request, such as a prompt longer than max_model_len
            raise PromptError(f"vLLM refuses it: {one_line(error)}") from error
        except VLLMServerError as error:  # from the engine's process, which is no more
            raise ModelError(f"vLLM has ended ({one_line(error)}); a cause may be scores that are NaN") from error
        except RuntimeError as error:  # from an engine in this process
            if NANS not in str(error):
                raise
            raise NonFiniteScores(
                "vLLM: the scores are NaN, so that no token can be chosen; fetch the checkpoint again, or give dtype float32"
            ) from error
        return [[list(one.token_ids) for one in sorted(each.outputs, key=lambda one: one.index)] for each in outputs]

    def close(self) -> None:
        """Stop the engine and free its memory."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


def vllm_version() -> str:
    """The version of the imported package, whatever its distribution is called."""
    _prepare()
    import vllm

    return str(vllm.__version__)


def _prepare() -> None:
    """Call before importing vLLM, which reads its environment then."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
