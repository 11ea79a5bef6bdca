"""The prior of an engine against the model that the engine has loaded, as its weights were in the checkpoint."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from mgap.backbones.identity import Identity, describe_tensors, is_plain, sample_places, short_name
from mgap.errors import UnsupportedHead
from mgap.serving.engine_settings import Served, Serving, learnt_key

if TYPE_CHECKING:
    from torch import Tensor, nn

TENSORS_ATTRIBUTE = "_mgap_tensors"  # of a loaded model: the weights of its checkpoint, as an identity describes them


def checked_method(serving: Serving, identity: Callable[[], Identity] | None, logger: logging.Logger) -> Served:
    """The method of an engine. Raises if its prior was made with another model than `identity` tells; None: not asked here."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        method = serving.method()
        if identity is not None:
            method.learnt.require_identity(identity(), f"the {learnt_key(type(method)).replace('_', ' ')}")
    for warning in raised:
        logger.warning("%s", warning.message)
    return method


def described_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """A checkpoint's tensors as a loader reads them; fused and packed in the model, they are whole here."""
    described: dict[str, str] = {}
    model.__dict__[TENSORS_ATTRIBUTE] = described
    for name, tensor in weights:
        if is_plain(tensor):
            described |= describe_tensors({short_name(name): tensor})
        yield name, tensor


def loaded_identity(
    model: nn.Module,
    embedding: type[nn.Module],
    head: type[nn.Module],
    *,
    name: str,
    hidden_size: int,
    config: Any,
    vocab_size: int | None = None,
) -> Identity:
    """As `Backbone.identity`. `embedding` and `head` are the server's classes, `config` is its configuration of the model.

    With `vocab_size` only embeddings of so many rows are looked at: a vision tower may have one for its positions.
    The embedding may be sharded, so every rank must call this.
    """
    tables: list[Any] = [part for part in model.modules() if isinstance(part, embedding)]
    tables = [part for part in tables if vocab_size is None or part.org_vocab_size == vocab_size]
    table: Any = next((part for part in tables if not isinstance(part, head)), tables[0] if tables else None)
    if table is None:
        raise UnsupportedHead(f"{type(model).__name__} has no input embedding here: whether the prior fits cannot be checked")
    rows, columns = sample_places(table.org_vocab_size, table.embedding_dim)
    with torch.no_grad():
        states: Tensor = table(rows.to(next(model.parameters()).device))
    sample = states.float().cpu()[torch.arange(len(rows)), columns].tolist()
    return Identity(
        name=name,
        revision=config.revision,
        architecture=config.hf_config.architectures[0],
        hidden_size=int(hidden_size),
        vocab_size=int(table.org_vocab_size),
        sample=tuple(round(value, 7) for value in sample),
        tensors=model.__dict__.get(TENSORS_ATTRIBUTE, {}),
        is_partial=True,
    )
