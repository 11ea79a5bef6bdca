"""Check what was read from a saved object: tensors, numbers, and the model it names.

Each function returns the value, or raises an error that its caller turns into one that names the file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from mgap.backbones.identity import FLOATS, Identity
from mgap.io.typed_json import typed

UNREADABLE = (KeyError, TypeError, ValueError)  # what these checks raise


def finite(tensors: Mapping[str, Tensor], name: str, shape: Sequence[int | None]) -> Tensor:
    """The named tensor in float64: finite floating-point numbers of this shape. None: any size of at least 1."""
    tensor = tensors[name]
    sizes = zip(tensor.shape, shape, strict=False)
    if tensor.ndim != len(shape) or any(size < 1 or size != (wanted or size) for size, wanted in sizes):
        raise ValueError(f"{name} has the shape {list(tensor.shape)}, not {list(shape)}".replace("None", "any"))
    if not is_finite(tensor):
        raise ValueError(f"{name} holds NaN, infinite numbers, or numbers of another kind than floating point")
    return tensor.double()


def is_finite(tensor: Tensor) -> bool:
    """Whether these are floating-point numbers without NaN and infinity; needs no mask, which may not fit in memory."""
    return tensor.dtype in FLOATS and bool(torch.stack(tensor.aminmax()).isfinite().all())


def check_columns(parts: Sequence[Mapping[str, Any]], rows: int) -> None:
    """Refuse parts of a bank whose rows, steps and tokens are of another kind or range, or of another number of rows."""
    for name, least in (("rows", 0), ("steps", 0), ("tokens", -1)):
        for column in (part[name] for part in parts):
            if column.dtype != torch.int32 or not len(column) or int(column.min()) < least:
                raise ValueError(f"{name} are not whole numbers (int32) of at least {least}")
    if (last := max(int(part["rows"].max()) for part in parts)) + 1 != rows:
        raise ValueError(f"its last row is {last}, and its index says that there are {rows!r:.40}")


def whole(about: Mapping[str, Any], name: str, least: int) -> int:
    """The named whole number, of at least `least`."""
    value: int = typed(int, about[name], name)
    if not least <= value < 2**63:
        raise ValueError(f"{name} is {value!r:.40}, not a count of at least {least}")
    return value


def real(about: Mapping[str, Any], name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """The named number: finite, and within these limits."""
    value: float = typed(float, about[name], name)
    if not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{name} is {value:.6g}, not a finite number from {least:g} to {most:g}")
    return float(value)


def model_of(about: Mapping[str, Any], width: int) -> Identity | None:
    """The model that an object of this width names; None if it names none."""
    if about["model"] is None:
        return None
    identity = Identity.from_json(about["model"])
    if identity.hidden_size != width:
        raise ValueError(f"its width is {width}, and that of the model that it names is {identity.hidden_size}")
    return identity


def name_of(identity: Identity | None) -> str:
    """The model, for a line about what was fitted on it."""
    return "bare states" if identity is None else identity.name


def warn_if_nameless(place: str | PathLike[str], identity: Identity | None) -> None:
    """Tell that a saved object fits any model of its width. One made from bare states and one that was edited look alike."""
    if identity is None:
        warnings.warn(f"{place}: names no model, so nothing but its width is compared with the one that uses it", stacklevel=3)
