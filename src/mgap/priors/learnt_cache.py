"""A cache of what was learnt from a model: the next command that needs the same from the same weights reads it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers

import mgap
from mgap.backbones.base import Backbone, HasBackbone
from mgap.errors import MgapError
from mgap.io.atomic_files import cache_folder, written_alone
from mgap.registry import LEARNT

_SAMPLED = 16  # values per parameter that go into the digest


def through_cache(kind: str, how: Mapping[str, Any], model: Backbone | HasBackbone, learn: Callable[[], Any]) -> Any:
    """Return what `learn` returns, from the cache if this model and `how` are in it. A failed write to the cache is ignored."""
    backbone = Backbone.of(model)
    if any(weights.is_meta for weights in backbone.model.parameters()):  # offloaded: there are no values to digest
        return learn()
    facts = json.dumps([kind, dict(how), _facts(backbone)], sort_keys=True)
    place = cache_folder() / "learnt" / f"{kind}-{hashlib.sha256(facts.encode()).hexdigest()[:24]}"
    if (place / f"{kind}.json").is_file():
        with suppress(MgapError):  # damaged: learn it again
            return LEARNT.get(kind).load(place)
    learnt = learn()
    with suppress(OSError, MgapError):
        _save(learnt, place)
    return learnt


def _facts(backbone: Backbone) -> list[Any]:
    """Everything that changes what is learnt, down to the last digit."""
    versions = [mgap.__version__, torch.__version__, transformers.__version__]
    where = [backbone.dtype_name, backbone.device.type]
    return [backbone.identity.to_json(), _weights_digest(backbone), backbone.template_hash(), *where, *versions]


def _weights_digest(backbone: Backbone) -> str:
    """Digest a few values of every parameter: a checkpoint trained further in the same folder is another model."""
    digest = hashlib.sha256()
    for name, weights in backbone.model.named_parameters():
        flat = weights.detach().flatten()
        some = flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].double().cpu()
        digest.update(f"{name} {list(weights.shape)} {some.tolist()}".encode())
    return digest.hexdigest()


def _save(learnt: Any, place: Path) -> None:
    """Save completely or not at all, even if two processes learn the same."""
    within: dict[str, Any] = {"dir": place.parent, "prefix": ".", "suffix": ".part", "ignore_cleanup_errors": True}
    with written_alone(place.parent), tempfile.TemporaryDirectory(**within) as scratch:
        learnt.save(Path(scratch, "new"))
        if place.exists():  # a damaged one, or another process was quicker
            place.rename(Path(scratch, "old"))
        Path(scratch, "new").rename(place)
