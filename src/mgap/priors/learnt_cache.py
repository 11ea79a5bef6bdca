"""What was learnt from a model, kept in the cache: the next command that needs the same of the same weights reads it."""

from __future__ import annotations

import hashlib
import json
import shutil
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
from mgap.io.atomic_files import cache_folder
from mgap.registry import LEARNT

_SAMPLED = 16  # values of each parameter that tell weights apart


def through_cache(kind: str, how: Mapping[str, Any], model: Backbone | HasBackbone, learn: Callable[[], Any]) -> Any:
    """What `learn` gives, or gave before for this model and this `how`. A cache that cannot be written is done without."""
    backbone = Backbone.of(model)
    if any(weights.is_meta for weights in backbone.model.parameters()):  # they lie elsewhere: nothing tells them apart
        return learn()
    facts = json.dumps([kind, dict(how), _facts(backbone)], sort_keys=True)
    place = cache_folder() / "learnt" / f"{kind}-{hashlib.sha256(facts.encode()).hexdigest()[:24]}"
    if (place / f"{kind}.json").is_file():
        with suppress(MgapError):  # damaged: learnt again
            return LEARNT.get(kind).load(place)
    found = learn()
    with suppress(OSError, MgapError):
        _keep(found, place)
    return found


def _facts(backbone: Backbone) -> list[Any]:
    """Everything that changes what is learnt, in its last digits too."""
    versions = [mgap.__version__, torch.__version__, transformers.__version__]
    where = [backbone.dtype_name, backbone.device.type]
    return [backbone.identity.to_json(), _weights_digest(backbone), backbone.template_hash(), *where, *versions]


def _weights_digest(backbone: Backbone) -> str:
    """Of a few values of every parameter: a checkpoint that was trained on, in the same folder, is another model."""
    digest = hashlib.sha256()
    for name, weights in backbone.model.named_parameters():
        flat = weights.detach().flatten()
        some = flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].double().cpu()
        digest.update(f"{name} {list(weights.shape)} {some.tolist()}".encode())
    return digest.hexdigest()


def _keep(found: Any, place: Path) -> None:
    """Whole or not at all, also where two processes learn the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=place.parent, prefix=".", suffix=".part"))
    try:
        found.save(unfinished)
        if place.exists():  # a damaged one
            shutil.rmtree(place)
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
