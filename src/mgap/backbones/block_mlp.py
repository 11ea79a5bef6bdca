"""The MLP of a decoder block, and the weights through which it writes into the residual stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mgap.backbones.base import Backbone
from mgap.backbones.identity import is_plain
from mgap.errors import ModelError

_MLPS = ("mlp", "feed_forward", "block_sparse_moe")  # what transformers' decoder blocks call theirs
_DOWN = ("down_proj", "fc2", "c_proj", "w2")  # and these their last projection


@dataclass(frozen=True)
class OutputWeight:
    """A weight or bias that writes into the residual stream, of one projection or of all experts."""

    name: str  # within the block
    values: Tensor
    axis: int  # that of the residual stream's width


def block_mlps(backbone: Backbone) -> list[nn.Module]:
    """The MLP of every block, in order. Refuses blocks without one, and blocks that share one."""
    found = []
    for number, block in enumerate(backbone.layers):
        mlp = next((part for name in _MLPS if isinstance(part := getattr(block, name, None), nn.Module)), None)
        if mlp is None:
            raise ModelError(f"{backbone.name}: block {number} has no MLP under the names {', '.join(_MLPS)}")
        found.append(mlp)
    if len(set(map(id, found))) < len(found):
        raise ModelError(f"{backbone.name}: several of its blocks share one MLP, which cannot be changed in one of them alone")
    return found


def output_weights(backbone: Backbone, blocks: Sequence[int]) -> dict[int, list[OutputWeight]]:
    """What the MLPs of these blocks write with, by block. Refuses weights that are missing, shared, or no plain numbers."""
    name, mlps = backbone.name, block_mlps(backbone)
    if getattr(backbone.config, "quantization_config", None) is not None:
        raise ModelError(f"{name}: its weights are quantised; name the checkpoint that they were made from")
    if getattr(backbone.model, "_hf_peft_config_loaded", False):
        raise ModelError(f"{name}: it has an adapter beside its weights; merge the adapter into them first")
    uses = Counter(id(values) for _, values in backbone.model.named_parameters(remove_duplicate=False))
    found = {}
    for block in blocks:
        found[block] = list(_of_mlp(mlps[block], backbone.hidden_size, f"{name}, block {block}"))
        for weight in found[block]:
            where = f"{name}: {weight.name} of block {block}"
            if uses[id(weight.values)] > 1:
                raise ModelError(f"{where} is shared with another part of the model, which would change too")
            if not is_plain(weight.values):
                raise ModelError(f"{where} is quantised or not in memory; load it whole, in float32, bfloat16 or float16")
    return found


def _of_mlp(mlp: nn.Module, width: int, where: str) -> Iterator[OutputWeight]:
    is_empty = True
    for name, part in mlp.named_modules():
        if name.rpartition(".")[2] not in _DOWN:
            continue
        if not isinstance(part, nn.Linear | Conv1D):
            raise ModelError(f"{where}: {name} is a {type(part).__name__}, not a linear layer of plain weights")
        is_empty = False
        yield OutputWeight(f"{name}.weight", part.weight, 1 if isinstance(part, Conv1D) else 0)  # Conv1D is transposed
        if part.bias is not None:
            yield OutputWeight(f"{name}.bias", part.bias, 0)
    for name, values in mlp.named_parameters():
        own = name.rpartition(".")[2]
        if own.removesuffix("_bias") in _DOWN:  # of all experts, [experts, ...]
            is_empty = False
            yield OutputWeight(name, values, _axis(values, width, f"{where}: {name}"))
    if is_empty:
        raise ModelError(f"{where}: its MLP has no down projection under the names {', '.join(_DOWN)}")


def _axis(values: Tensor, width: int, where: str) -> int:
    axes = [axis for axis, size in enumerate(values.shape) if axis > 0 and size == width]
    if len(axes) != 1:
        raise ModelError(f"{where} has the shape {list(values.shape)}, in which the residual stream's {width} cannot be told")
    return axes[0]
