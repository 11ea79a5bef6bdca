"""Attach MGAP to the `compute_logits` of a model that vLLM has loaded.

Every generating model has this method, and both of vLLM's model runners call it on the states behind the final norm.

vLLM's loader classes attach it to the loaded instance. They know the engine's configuration, run on every rank after weights
are packed and before anything wraps the model, and can tell draft models apart.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from mgap.backbones.identity import Identity, describe_tensors, is_plain, sample_places, short_name
from mgap.errors import SettingError, UnsupportedHead
from mgap.serving.correcting import CorrectedLogits
from mgap.serving.counts import Counts
from mgap.serving.engine_settings import Serving
from mgap.serving.exact_logits import ExactLogits
from mgap.serving.row_strengths import row_strengths_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from vllm.config import ModelConfig, VllmConfig

    from mgap.methods.mgap import MGAP

logger = logging.getLogger("vllm.mgap")  # a child of vLLM's logger, for the same format and destination
MODEL_ATTRIBUTE = "_mgap"  # holds the `CorrectedLogits` of a loaded model
EXTENSION = "mgap.serving.extension.Extension"  # the worker extension of a run's engines
TENSORS_ATTRIBUTE = "_mgap_tensors"  # holds the weights of its checkpoint, as an identity describes them


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
        return model


class ReadingLoader(AttachingLoader):
    """The same for loaders that read a checkpoint tensor by tensor: fused and packed in the model, they are whole here."""

    def get_all_weights(self, model_config: ModelConfig, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        described: dict[str, str] = {}
        if self.is_asked:
            model.__dict__[TENSORS_ATTRIBUTE] = described
        for name, tensor in super().get_all_weights(model_config, model):  # type: ignore[misc]
            if self.is_asked and is_plain(tensor):
                described |= describe_tensors({short_name(name): tensor})
            yield name, tensor


def attach(model: nn.Module, serving: Serving, config: VllmConfig, model_config: ModelConfig) -> None:
    """Check the prior against the model and correct its logits from now on. Raises on every rank if this cannot be done."""
    from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

    refuse_engine(config, model_config, model)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        method = serving.method()
        if get_pp_group().is_first_rank:
            method.prior.require_identity(identity_of(model, model_config), "the prior")
    for warning in raised:
        logger.warning("%s", warning.message)
    if not get_pp_group().is_last_rank:
        return
    device = next(model.parameters()).device
    like = torch.zeros(1, method.prior.hidden_size, dtype=model_config.dtype, device=device)
    rows = row_strengths_of(config)
    rows.alpha = method.settings.alpha
    is_logging_rank = get_tensor_model_parallel_rank() == 0
    exact = exact_logits(model, method, like)
    corrected = CorrectedLogits(
        model.compute_logits,  # type: ignore[arg-type]
        method,
        rows,
        Counts(device, serving.log_every if is_logging_rank else 0.0),
        like=like,
        is_fixed=config.lora_config is None,  # an adapter may change the head from request to request
        log=lambda text: logger.info("MGAP: %s", text),
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
        "MGAP on %s: K=%d of %s, alpha=%g, lambda=%g, by %s",
        type(model).__name__, method.subspace.rank, serving.prior, s.alpha, s.lam, corrected.way,
    )  # fmt: skip


def exact_logits(model: nn.Module, method: MGAP, like: Tensor) -> ExactLogits | None:
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

    tables = [part for part in model.modules() if isinstance(part, VocabParallelEmbedding)]
    table: Any = next((part for part in tables if not isinstance(part, ParallelLMHead)), tables[0] if tables else None)
    if table is None:
        raise UnsupportedHead(f"{type(model).__name__} has no input embedding here: whether the prior fits cannot be checked")
    rows, columns = sample_places(table.org_vocab_size, table.embedding_dim)
    with torch.no_grad():
        states: Tensor = table(rows.to(next(model.parameters()).device))
    sample = states.float().cpu()[torch.arange(len(rows)), columns].tolist()
    return Identity(
        name=model_config.model,
        revision=model_config.revision,
        architecture=model_config.hf_config.architectures[0],
        hidden_size=int(model_config.get_hidden_size()),
        vocab_size=int(table.org_vocab_size),
        sample=tuple(round(value, 7) for value in sample),
        tensors=model.__dict__.get(TENSORS_ATTRIBUTE, {}),
        is_partial=True,
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
