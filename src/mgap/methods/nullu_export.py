"""Nullu written into a checkpoint: W_down <- (I - strength V V') W_down, for any engine, at no cost by the token.

Every expert of a mixture is projected, and a bias too, so that the checkpoint says what the hooks of nullu.py say. Whether
that is so is tried on each block: an MLP that still writes along the directions is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

import mgap
from mgap.backbones.base import Backbone, HasBackbone
from mgap.backbones.block_mlp import OutputWeight, block_mlps, output_weights
from mgap.backbones.hooks import is_hooked
from mgap.backbones.write_checkpoint import refuse_existing, write_checkpoint
from mgap.errors import ModelError, SettingError
from mgap.io.strict_json import strict_json
from mgap.methods.nullu import Nullu, project_out

RECORD = "nullu.json"
_TRIED = 64  # random inputs of each MLP
_LEFT = 0.05  # share of what should be gone that may be left: 16-bit weights leave about 1%


def export(model: Backbone | HasBackbone, method: Nullu, folder: str | PathLike[str]) -> None:
    """Write the model with projected weights to a new folder, processor and card included. The model stays as it was."""
    check_export(method, folder)
    backbone = Backbone.of(model)
    record = describe_export(backbone, method)  # of the model as it is
    with projected_weights(backbone, method):
        write_checkpoint(backbone, folder, {RECORD: strict_json(record, indent=1) + "\n", "README.md": write_card(record)})


def check_export(method: Nullu, folder: str | PathLike[str]) -> None:
    """Refuse what can be refused without the model."""
    refuse_existing(folder)
    if method.is_zero:
        raise SettingError(
            f"strength={method.strength:g} in {len(method.blocks)} blocks changes no weight: give more, or use the model itself"
        )


@contextmanager
def projected_weights(backbone: Backbone, method: Nullu) -> Iterator[None]:
    """Inside the block, the model's own weights do what the method does with hooks."""
    method.null_space.require(backbone)
    if is_hooked(backbone.model):
        raise SettingError(f"{backbone.name} has hooks, of a method that is on or of your own: remove them first")
    mlps, weights = block_mlps(backbone), output_weights(backbone, method.blocks)
    kept = [(weight.values, weight.values.detach().clone()) for of_block in weights.values() for weight in of_block]
    try:
        for block, of_block in weights.items():
            _project(backbone, mlps[block], of_block, method.basis(block), method.strength, block)
        yield
    finally:
        with torch.no_grad():
            for values, before in kept:
                values.copy_(before)


def _project(
    backbone: Backbone, mlp: nn.Module, weights: Sequence[OutputWeight], basis: Tensor, strength: float, block: int
) -> None:
    """Project what one MLP writes with, and try it."""
    like = weights[0].values
    generator = torch.Generator().manual_seed(0)
    tried = torch.randn(1, _TRIED, backbone.hidden_size, generator=generator).to(like.device, like.dtype)
    before = _along(mlp, tried, basis)
    with torch.no_grad():
        for weight in weights:
            values = weight.values.detach().cpu().double().movedim(weight.axis, -1)
            weight.values.copy_(project_out(values, basis, strength).movedim(-1, weight.axis))
    left = float((_along(mlp, tried, basis) - (1 - strength) * before).norm() / before.norm().clamp_min(1e-30))
    if not left <= _LEFT * strength:
        parts = ", ".join(weight.name for weight in weights)
        raise ModelError(
            f"{backbone.name}: with {parts} projected, the MLP of block {block} still writes {100 * left:.0f}% of what should "
            "be gone: it has other ways out; use nullu as a method, with hooks"
        )


def _along(mlp: nn.Module, inputs: Tensor, basis: Tensor) -> Tensor:
    """What an MLP writes along the directions, [tokens, K] in float64."""
    with torch.no_grad():
        out: Any = mlp(inputs)
    written: Tensor = out[0] if isinstance(out, tuple) else out
    return written.reshape(-1, written.shape[-1]).cpu().double() @ basis.T


def describe_export(backbone: Backbone, method: Nullu) -> dict[str, Any]:
    """What was done to which model, as plain JSON."""
    space = method.null_space
    edges = {block: space.edges[block - space.start] for block in method.blocks}
    return {
        "method": "nullu",
        "rank": space.rank,
        "strength": method.strength,
        "blocks": list(method.blocks),
        "depth": space.depth,
        "pairs": space.count,
        "dropped": space.dropped,
        "singular_values": {str(block): list(edge) for block, edge in edges.items()},  # S_K and S_K+1
        "null_space": space.origin,
        "model": backbone.identity.to_json(),
        "mgap": mgap.__version__,
    }


def write_card(record: dict[str, Any]) -> str:
    """The checkpoint's README.md."""
    model, blocks = record["model"], record["blocks"]
    edges = record["singular_values"].items()
    rows = "\n".join(f"| {block} | {inside:.4g} | {outside:.4g} |" for block, (inside, outside) in edges)
    return f"""---
base_model: {model["name"]}
library_name: transformers
pipeline_tag: image-text-to-text
tags: [mgap, nullu]
---

# {model["name"]} with Nullu

Down projections of the decoder's MLPs, projected so that they do not write along the directions in which false captions differ
from true ones (Nullu, Yang et al., CVPR 2025, arXiv 2412.13817). All other weights are those of {model["name"]}, and so is the
licence. Written by `mgap export nullu`, mgap {record["mgap"]}; `{RECORD}` has the same as JSON, with numbers of every weight of
the model by which it is known. The processor has no part for videos.

| | |
|---|---|
| model | {model["name"]}, revision {model["revision"] or "unknown"}, {model["architecture"]} |
| directions a block (K) | {record["rank"]} |
| blocks, from 0 | {blocks[0]} to {blocks[-1]} of {record["depth"]} |
| strength | {record["strength"]:g} |
| pairs of captions | {record["pairs"]}, and {record["dropped"]} that did not differ |

Where the last singular value inside is close to the first outside, other pairs would give other directions:

| block | S_K | S_K+1 |
|---|---|---|
{rows}
"""
