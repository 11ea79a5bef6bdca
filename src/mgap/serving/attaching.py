"""Attach MGAP to the `compute_logits` of a model that vLLM has loaded.

Every generating model has this method, and both of vLLM's model runners call it on the states behind the final norm.

vLLM's loader classes attach it to the loaded instance. They know the engine's configuration, run on every rank after weights
are packed and before anything wraps the model, and can tell draft models apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from mgap.backbones.identity import Identity
from mgap.errors import SettingError, UnsupportedHead
from mgap.methods.mgap import MGAP
from mgap.serving.correcting import CorrectedLogits
from mgap.serving.counts import Counts
from mgap.serving.engine_settings import EXTENSION, Served, Serving, is_paired
from mgap.serving.exact_logits import ExactLogits
from mgap.serving.installed import untested
from mgap.serving.prior_check import checked_method, described_weights, loaded_identity
from mgap.serving.row_strengths import row_strengths_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from vllm.config import ModelConfig, VllmConfig

logger = logging.getLogger("vllm.mgap")  # a child of vLLM's logger, for the same format and destination
MODEL_ATTRIBUTE, SERVING_ATTRIBUTE = "_mgap", "_mgap_serving"  # of a loaded model: its `CorrectedLogits`, and its `Serving`


def watch_loaders() -> None:
    """Make vLLM's loaders attach MGAP to what they load. Repeated calls change nothing."""
    from vllm.model_executor import model_loader

    loaders: dict[str, type[Any]] = model_loader._LOAD_FORMAT_TO_MODEL_LOADER
    wrapped: dict[type[Any], type[Any]] = {}
    for load_format, loader in loaders.items():
        if not issubclass(loader, AttachingLoader):
            mixin = ReadingLoader if hasattr(loader, "get_all_weights") else AttachingLoader
            wrapped.setdefault(loader, type(loader.__name__, (mixin, loader), {"__doc__": loader.__doc__}))
            loaders[load_format] = wrapped[loader]


class AttachingLoader:
    """Mixed in before one of vLLM's loader classes."""

    is_asked = False  # whether the engine's configuration names MGAP, or a run wants to know the model

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, **kwargs: Any) -> nn.Module:
        serving = Serving.of_engine(vllm_config)
        self.is_asked = serving is not None or vllm_config.parallel_config.worker_extension_cls == EXTENSION
        model: nn.Module = super().load_model(vllm_config=vllm_config, model_config=model_config, **kwargs)  # type: ignore[misc]
        if serving is not None and model_config.runner_type != "draft":
            attach(model, serving, vllm_config, model_config)
        if is_paired(vllm_config) and model_config.runner_type != "draft":
            from mgap.serving.paired_requests import attach_pairs

            attach_pairs(model, vllm_config)
        return model


class ReadingLoader(AttachingLoader):
    """The same for loaders that read a checkpoint tensor by tensor: fused and packed in the model, they are whole here."""

    def get_all_weights(self, model_config: ModelConfig, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        weights = super().get_all_weights(model_config, model)  # type: ignore[misc]
        yield from described_weights(model, weights) if self.is_asked else weights


def attach(model: nn.Module, serving: Serving, config: VllmConfig, model_config: ModelConfig) -> None:
    """Check the prior against the model and correct its logits from now on. Raises on every rank if this cannot be done."""
    import vllm
    from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

    refuse_engine(config, model_config, model)
    if said := untested(vllm.__version__):
        logger.warning("MGAP: %s; look at its answers before you trust them", said)
    identity = (lambda: identity_of(model, model_config)) if get_pp_group().is_first_rank else None
    method = checked_method(serving, identity, logger)
    model.__dict__[SERVING_ATTRIBUTE] = serving
    if not get_pp_group().is_last_rank:
        return
    device = next(model.parameters()).device
    like = torch.zeros(1, method.subspace.hidden_size, dtype=model_config.dtype, device=device)
    rows = row_strengths_of(config)
    rows.alpha = method.settings.alpha
    is_logging_rank = get_tensor_model_parallel_rank() == 0
    exact = exact_logits(model, method, like)
    corrected = CorrectedLogits(
        model.compute_logits,  # type: ignore[arg-type]
        method,
        rows,
        Counts(device, serving.log_every if is_logging_rank else 0.0, logger),
        like=like,
        is_fixed=config.lora_config is None,  # an adapter may change the head from request to request
        exact=exact,
    )
    model.__dict__["compute_logits"] = corrected  # shadows the method of the class
    model.__dict__[MODEL_ATTRIBUTE] = corrected
    _watch_weights(model, corrected)
    if config.use_v2_model_runner:
        from mgap.serving.request_rows import track_request_rows

        track_request_rows(model, rows, config)
    s = method.settings
    logger.info(
        "MGAP on %s: %sK=%d of %s, alpha=%g, lambda=%g, by %s",
        type(model).__name__, told_method(method), method.subspace.rank, serving.prior, s.alpha, s.lam, corrected.way,
    )  # fmt: skip


def told_method(method: Served) -> str:
    """For the log: the method's name, where it is not MGAP itself."""
    return "" if isinstance(method, MGAP) else f"{method.name}, "


def exact_logits(model: nn.Module, method: Served, like: Tensor) -> ExactLogits | None:
    """The model's logits in float32, for the rows that MGAP corrects; None if it is in float32, or if that cannot be had."""
    if not method.exact or like.dtype == torch.float32:
        return None
    exact = ExactLogits.of(model, model.compute_logits, like)  # type: ignore[arg-type]
    if isinstance(exact, str):
        logger.warning("MGAP: the logits that it corrects are rounded to %s, because %s", like.dtype, exact)
        return None
    return exact


def refuse_engine(config: VllmConfig, model_config: ModelConfig, model: nn.Module) -> None:
    """Raise for engines that would bypass the correction."""
    if model_config.runner_type != "generate":
        raise SettingError(
            f"MGAP acts on generated tokens, and this engine's runner is {model_config.runner_type}: leave mgap out"
        )
    if getattr(config.parallel_config, "enable_batch_sharded_sampling", False):
        raise SettingError(
            "MGAP needs the logits of all rows and tokens on every rank: leave out --enable-batch-sharded-sampling, or mgap"
        )
    if not hasattr(model, "compute_logits"):
        raise UnsupportedHead(f"{type(model).__name__} has no compute_logits: MGAP cannot act on it, leave mgap out")


def identity_of(model: nn.Module, model_config: ModelConfig) -> Identity:
    """As `Backbone.identity`; weights as in the checkpoint. The embedding may be sharded, so every rank must call this."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    name, hidden_size = model_config.model, model_config.get_hidden_size()
    return loaded_identity(
        model, VocabParallelEmbedding, ParallelLMHead, name=name, hidden_size=hidden_size, config=model_config
    )


def _watch_weights(model: nn.Module, corrected: CorrectedLogits) -> None:
    """Measure the head again after a live engine gets new weights, from a file or from training.

    They arrive through `load_weights`, or, already packed for the kernels, through modules that `get_submodule` returns.
    """

    def marking_stale(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            corrected.is_stale = True
            return method(*args, **kwargs)

        return call

    for name in ("load_weights", "get_submodule"):
        model.__dict__[name] = marking_stale(getattr(model, name))
