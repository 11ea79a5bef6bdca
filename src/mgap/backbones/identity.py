"""Which model something was made with: told from a few numbers of every weight, in whatever precision it is loaded.

A few numbers a tensor are read, so that a large model costs milliseconds. A weight that changed in some places only may escape.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mgap.errors import BackboneMismatch
from mgap.io.typed_json import typed

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # other dtypes are packed, and mean little by themselves
_VALUES, _MEANS = 64, 4  # values of a tensor that are read, and means that are kept of them
_CLOSE = 2**-6  # two loadings of one weight differ by less: bfloat16 rounds by up to 2**-9
_DESCRIBED = re.compile(rf"[0-9]+(x[0-9]+)*( -?[0-9]{{1,6}}(\.[0-9]{{1,10}})?(e[+-][0-9]{{2}})?){{{1 + _MEANS}}}")
_WRAPPERS = {"model", "language_model", "vision_model", "_orig_mod"}  # parts of names that some versions add


@dataclass(frozen=True)
class Identity:
    """Identifies the model that something was fitted on, so that another model can be refused."""

    name: str
    revision: str | None
    architecture: str
    hidden_size: int
    vocab_size: int
    sample: tuple[float, ...]  # input-embedding values at fixed positions: recognises the weights in any precision
    tensors: Mapping[str, str] = field(default_factory=dict, hash=False)  # `describe_tensors`; empty in files of older versions
    is_partial: bool = False  # the model has weights that are not in `tensors`: quantised ones, or under other names

    def require(self, other: Identity, what: str) -> None:
        """Refuse `other`, the current model, unless this identity describes it."""
        for label in ("architecture", "hidden_size", "vocab_size"):
            mine, theirs = getattr(self, label), getattr(other, label)
            if mine != theirs:
                raise BackboneMismatch(self._refusal(other, what, f"{label} is {mine} there and {theirs} here"))
        if self.name != other.name and not (is_local(self.name) or is_local(other.name)):
            raise BackboneMismatch(self._refusal(other, what, "the model ids differ"))
        mine, theirs = (torch.tensor(sample, dtype=torch.float64) for sample in (self.sample, other.sample))
        if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=_CLOSE, atol=1e-6):
            raise BackboneMismatch(self._refusal(other, what, "the weights differ"))
        if not self.tensors:
            warnings.warn(f"{what} {OLDER}; make it again to have every weight compared", stacklevel=2)
        elif not other.tensors:
            warnings.warn(f"{what}: no weights but the input embedding can be compared with {other.name} here", stacklevel=2)
        elif different := self._different_tensor(other):
            raise BackboneMismatch(self._refusal(other, what, f"the weights differ, such as {different:.200}"))

    def _different_tensor(self, other: Identity) -> str | None:
        for name in {**self.tensors, **other.tensors}:
            mine, theirs = self.tensors.get(name), other.tensors.get(name)
            if mine is not None and theirs is not None and is_same_tensor(mine, theirs):
                continue
            is_in_both = mine is not None and theirs is not None and mine.split()[0] == theirs.split()[0]
            if is_in_both or not (self.is_partial or other.is_partial):
                return name
        return None

    def _refusal(self, other: Identity, what: str, why: str) -> str:
        return f"{what} was made with {self.name}, not with {other.name}: {why}; fit one for this model"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Identity:
        """Raises TypeError."""
        identity: Identity = typed(cls, data, "model")
        if identity.hidden_size < 1 or identity.vocab_size < 1:
            sizes = f"{identity.hidden_size!r:.40} and {identity.vocab_size!r:.40}"
            raise TypeError(f"model.hidden_size and model.vocab_size are {sizes}, not of at least 1")
        if not all(map(math.isfinite, identity.sample)):
            raise TypeError("model.sample holds NaN or infinite numbers")
        for name, text in identity.tensors.items():
            if not _DESCRIBED.fullmatch(text):
                raise TypeError(f"model.tensors.{name:.60} is {text!r:.60}, not a shape and {1 + _MEANS} numbers")
        return identity


OLDER = "was saved by an older version, which knew a model by its input embedding alone"


def sample_places(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The 64 rows and columns where an identity samples an embedding; computed on the CPU, so the same on every machine."""
    return torch.linspace(0, rows - 1, 64).long(), torch.linspace(0, columns - 1, 64).long()


def sample_embedding(embedding: nn.Module) -> tuple[float, ...]:
    """The values of an input embedding that `Identity.sample` holds."""
    weight = held_values(embedding, "weight")
    rows, columns = sample_places(*weight.shape)
    sample = weight.detach()[rows.to(weight.device), columns.to(weight.device)].float().cpu().tolist()
    return tuple(round(value, 7) for value in sample)


def describe_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each tensor its shape, the root mean square of 64 of its values, and the means of 16 of them each, as text.

    The same on every device: sums are rounded once, by `math.fsum`. One transfer from a device for each dtype.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault((tensor.device, tensor.dtype), []).append(name)
    described = {}
    for (device, _), names in kinds.items():
        places: dict[int, Tensor] = {}
        for count in {tensors[name].numel() for name in names}:
            places[count] = value_places(count).to(device)
        values = torch.stack([torch.take(tensors[name].detach(), places[tensors[name].numel()]) for name in names])
        for name, row in zip(names, values.float().tolist(), strict=True):
            described[name] = describe_values(tensors[name].shape, row)
    return {name: described[name] for name in tensors}


def value_places(count: int) -> Tensor:
    """Which values of a flattened tensor of `count` are read: 64, evenly spread."""
    return torch.arange(_VALUES) * (count - 1) // (_VALUES - 1)


def describe_values(shape: Sequence[int], values: Sequence[float]) -> str:
    """One tensor's description, from the values at its `value_places`; for engines whose tensors are not torch's."""
    size = _VALUES // _MEANS
    rms = math.sqrt(math.fsum(value * value for value in values) / _VALUES)
    means = (math.fsum(values[start : start + size]) / size for start in range(0, _VALUES, size))
    return " ".join(["x".join(map(str, shape)) or "1", *(f"{number:.6g}" for number in (rms, *means))])


def is_same_tensor(one: str, other: str) -> bool:
    """Whether two descriptions are of one tensor, perhaps in two precisions."""
    if one == other:
        return True
    (shape, *numbers), (other_shape, *others) = one.split(), other.split()
    mine, theirs = [float(number) for number in numbers], [float(number) for number in others]
    allowed = _CLOSE * max(mine[0], theirs[0]) + 1e-6
    is_close = all(abs(a - b) <= allowed for a, b in zip(mine, theirs, strict=True))
    return shape == other_shape and is_close and math.isfinite(allowed)


def named_weights(model: nn.Module) -> tuple[dict[str, Tensor], bool]:
    """The weights that hold plain numbers, by `short_name`, tied ones once; and whether the model has others."""
    config: Any = getattr(model, "config", None)
    weights: dict[str, Tensor] = {}
    has_others = getattr(config, "quantization_config", None) is not None
    for name, parameter in model.named_parameters():
        prefix, _, own = name.rpartition(".")
        values = held_values(model.get_submodule(prefix), own) if parameter.is_meta else parameter
        if is_plain(values):
            short = short_name(name)
            weights[name if short in weights else short] = values
        has_others = has_others or parameter.is_meta or not is_plain(values)  # offloaded: tied ones may be told apart
    return weights, has_others


def held_values(module: nn.Module, name: str) -> Tensor:
    """A module's weight; of an offloaded one, the values that accelerate brings for the length of a forward, where they are."""
    weight: Tensor = getattr(module, name)
    hook = getattr(module, "_hf_hook", None)
    for each in getattr(hook, "hooks", (hook,)) if weight.is_meta else ():
        values = getattr(each, "weights_map", None)
        if values is not None:
            weight = values[name]
    return weight


def is_plain(weight: Tensor) -> bool:
    """Whether a tensor's elements are the weights themselves: not packed, not elsewhere, and not spread over devices."""
    is_own_class = type(weight) in (nn.Parameter, Tensor)
    return is_own_class and weight.dtype in FLOATS and not weight.is_meta and weight.numel() > 0


def short_name(name: str) -> str:
    """A weight's name without the parts that differ between versions of transformers, checkpoints and vLLM."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def is_local(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or os.path.exists(name) or "/" not in name
