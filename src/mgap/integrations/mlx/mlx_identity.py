"""Which model a model of mlx-vlm is: `mgap.backbones.identity` for MLX's arrays, quantised ones included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import torch
from mlx.utils import tree_flatten

from mgap.backbones.identity import Identity, describe_values, sample_places, short_name, value_places
from mgap.errors import ModelError, UnsupportedHead
from mgap.integrations.mlx.mlx_head import language_of
from mgap.io.strict_json import load_json

_FLOATS = (mx.float16, mx.bfloat16, mx.float32)
_STEPS = 1.5  # quantising moves a weight by half a step; the outermost ones, up to this many


def identity_of(model: Any, prior: Identity | None = None) -> Identity:
    """As `Backbone.identity`. If the input embedding is quantised, its values are those of `prior` where they can be.

    An id on the hub is not compared, since a checkpoint that was converted for MLX has another one; its weights are.
    """
    folder = getattr(model, "model_path", None)
    if folder is None:
        raise ModelError(f"{type(model).__name__} does not say where it was loaded from: pass what mlx_vlm.load returns")
    architectures = load_json(Path(folder) / "config.json").get("architectures")
    if not architectures:
        raise ModelError(f"{folder}: its config.json names no architectures, so that a prior cannot be checked against it")
    embedding = embedding_of(model)
    rows, columns = len(embedding["weight"]), embedding(mx.array([0])).shape[-1]
    return Identity(
        name=str(folder),
        revision=None,
        architecture=architectures[0],
        hidden_size=columns,
        vocab_size=rows,
        sample=_sample(embedding, rows, columns, () if prior is None else prior.sample),
        tensors=_described(model),
        is_partial=True,
    )


def embedding_of(model: Any) -> Any:
    """The input embedding of a model of mlx-vlm."""
    for name, module in language_of(model).named_modules():
        if name.rpartition(".")[2] == "embed_tokens":
            return module
    raise UnsupportedHead(f"{type(model).__name__} has no embed_tokens: whether the prior fits cannot be checked")


def _sample(embedding: Any, rows: int, columns: int, expected: tuple[float, ...]) -> tuple[float, ...]:
    """The values of an input embedding that `Identity.sample` holds."""
    at_rows, at_columns = (mx.array(place.numpy()) for place in sample_places(rows, columns))
    here = mx.arange(len(at_rows))
    values = embedding(at_rows)[here, at_columns].astype(mx.float32)
    if getattr(embedding, "mode", None) == "affine" and len(expected) == len(at_rows):
        step = mx.abs(embedding["scales"][at_rows, at_columns // embedding.group_size].astype(mx.float32))
        if mx.all(mx.abs(values - mx.array(expected)) <= _STEPS * step).item():
            return expected
    return tuple(round(value, 7) for value in values.tolist())


def _described(model: Any) -> Mapping[str, str]:
    """The unquantised weights, under the names and in the layout of transformers."""
    parameters = {name: array for name, array in tree_flatten(model.parameters()) if array.dtype in _FLOATS and array.size}
    read = {name: _values(array) for name, array in parameters.items()}
    mx.eval(*read.values())
    described: dict[str, str] = {}
    for name, values in read.items():
        short = short_name(name)
        described[name if short in described else short] = describe_values(_layout(parameters[name]).shape, values.tolist())
    return described


def _values(array: Any) -> Any:
    places: torch.Tensor = value_places(array.size)
    return _layout(array).reshape(-1)[mx.array(places.numpy())].astype(mx.float32)


def _layout(array: Any) -> Any:
    """Kernels of convolutions have their channels last in MLX, and second in torch."""
    return mx.moveaxis(array, -1, 1) if array.ndim in (4, 5) else array
