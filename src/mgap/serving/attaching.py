"""A model that vLLM has loaded, with MGAP on its `compute_logits`: the one place that every generating model has, and both of
vLLM's model runners call, on the states behind the final norm.

What is corrected is the loaded instance, from the classes that load weights: they know the engine's configuration, run on every
rank after weights are packed and before anything is wrapped around the model, and draft models can be told apart there.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from mgap.backbones.base import Identity, sample_places
from mgap.errors import SettingError, UnsupportedHead
from mgap.serving.correcting import Corrected
from mgap.serving.counts import Counts
from mgap.serving.engine_settings import Serving
from mgap.serving.row_strengths import rows_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from vllm.config import ModelConfig, VllmConfig

logger = logging.getLogger("vllm.mgap")  # under vLLM's own, so that its lines look and go like those
HELD = "_mgap"  # where the loaded model keeps its `Corrected`


def watch_loaders() -> None:
    """From now on, what vLLM loads passes through `attach`; once is enough for a process."""
    from vllm.model_executor import model_loader

    loaders: dict[str, type[Any]] = model_loader._LOAD_FORMAT_TO_MODEL_LOADER
    made: dict[type[Any], type[Any]] = {}
    for form, loader in loaders.items():
        if not issubclass(loader, Attaching):
            made.setdefault(loader, type(loader.__name__, (Attaching, loader), {"__doc__": loader.__doc__}))
            loaders[form] = made[loader]


class Attaching:
    """In front of one of vLLM's loaders."""

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, **more: Any) -> nn.Module:
        model: nn.Module = super().load_model(vllm_config=vllm_config, model_config=model_config, **more)  # type: ignore[misc]
        wanted = Serving.wanted(vllm_config)
        if wanted is not None and model_config.runner_type != "draft":
            attach(model, wanted, vllm_config, model_config)
        return model


def attach(model: nn.Module, wanted: Serving, config: VllmConfig, about: ModelConfig) -> None:
    """Check the prior against the model, and correct its logits from now on; raises what stands in the way, on every rank."""
    from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

    refuse_engine(config, about, model)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        method = wanted.method()
    for warning in raised:
        logger.warning("%s", warning.message)
    if get_pp_group().is_first_rank:
        method.prior.require_identity(identity_of(model, about), "the prior")
    if not get_pp_group().is_last_rank:
        return
    device = next(model.parameters()).device
    like = torch.zeros(1, method.prior.hidden_size, dtype=about.dtype, device=device)
    rows = rows_of(config)
    rows.alpha = method.settings.alpha
    tells = get_tensor_model_parallel_rank() == 0
    corrected = Corrected(
        model.compute_logits,  # type: ignore[arg-type]
        method,
        rows,
        Counts(device, wanted.log_every if tells else 0.0),
        like=like,
        is_fixed=config.lora_config is None,  # an adapter may change the head from request to request
        log=lambda text: logger.info("MGAP: %s", text),
    )
    model.__dict__["compute_logits"] = corrected  # in front of the class's own
    model.__dict__[HELD] = corrected
    _watch_weights(model, corrected)
    if config.use_v2_model_runner:
        from mgap.serving.request_rows import tell_rows

        tell_rows(model, rows, config)
    s = method.settings
    logger.info(
        "MGAP on %s: K=%d of %s, alpha=%g, lambda=%g, by %s",
        type(model).__name__, method.subspace.rank, wanted.prior, s.alpha, s.lam, corrected.way,
    )  # fmt: skip


def refuse_engine(config: VllmConfig, about: ModelConfig, model: nn.Module) -> None:
    """Engines that would pass by what is corrected here."""
    if about.runner_type != "generate":
        raise SettingError(f"MGAP acts on generated tokens, and this engine's runner is {about.runner_type}: leave mgap out")
    if getattr(config.parallel_config, "enable_batch_sharded_sampling", False):
        raise SettingError(
            "MGAP needs the logits of all rows and tokens on every rank: leave out --enable-batch-sharded-sampling, or mgap"
        )
    if not hasattr(model, "compute_logits"):
        raise UnsupportedHead(f"{type(model).__name__} has no compute_logits: MGAP cannot act on it, leave mgap out")


def identity_of(model: nn.Module, about: ModelConfig) -> Identity:
    """As `Backbone.identity` says it, asked of an embedding that may be shared out among ranks: all of them must ask."""
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
        name=about.model,
        revision=about.revision,
        architecture=about.hf_config.architectures[0],
        hidden_size=int(about.get_hidden_size()),
        vocab_size=int(table.org_vocab_size),
        sample=tuple(round(value, 7) for value in sample),
    )


def _watch_weights(model: nn.Module, corrected: Corrected) -> None:
    """New weights in a live engine, from a file or from training: the head is measured again before it is next used.

    They come through `load_weights`, or, in the form that kernels read, into what `get_submodule` finds.
    """

    def marking(found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            corrected.is_stale = True
            return found(*args, **kwargs)

        return call

    for name in ("load_weights", "get_submodule"):
        model.__dict__[name] = marking(getattr(model, name))
