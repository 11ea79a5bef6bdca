"""Nullu (Yang et al., CVPR 2025): keep the MLPs of the upper blocks from writing along the directions of false captions.

    m_i <- m_i - strength V_i (V_i' m_i)      m_i: output of the MLP of block i, start <= i < end;  V_i [d, K]

The same as W_down <- (I - V V') W_down, which `mgap export nullu` writes into a checkpoint (nullu_export.py). V_i comes from
pairs of captions (priors/null_space.py). Cost: 1 forward per token, and two thin products per block and position. The authors'
code edits the weight alone: where a down projection has a bias, ours acts on it too. `strength` is ours; 1 is the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.backbones.block_mlp import block_mlps
from mgap.errors import SettingError
from mgap.methods.base import Handles, Method, Need, Removable, Seam, Tap, load_if_path
from mgap.methods.kinds.attention import report_logits
from mgap.priors.null_space import NullSpace
from mgap.settings import check_count, check_share
from mgap.types import ALL_MODES, Mode


def project_out(values: Tensor, basis: Tensor, strength: float = 1.0) -> Tensor:
    """values - strength V (V' values) along the last axis, [..., d]; the basis is V' [K, d]."""
    return torch.sub(values, (values @ basis.T) @ basis, alpha=strength)


class ProjectedOutput:
    """The hook of one block's MLP: takes the directions out of what it writes."""

    def __init__(self, basis: Tensor, strength: float, tap: Tap) -> None:
        self.basis, self.strength, self.tap = basis, strength, tap
        self.share: Tensor | None = None  # |V'm| / |m| at every position of the last forward that was traced

    def __call__(self, _mlp: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # some mixtures of experts return their router's choices too
            return (self.project(output[0]), *output[1:])
        return self.project(output)

    def project(self, written: Tensor) -> Tensor:  # [B, T, d]
        basis = self.basis.to(written.device)
        wide = written.to(basis.dtype)
        if self.tap.listener is not None:
            self.share = (wide @ basis.T).norm(dim=-1) / wide.norm(dim=-1).clamp_min(1e-12)
        return project_out(wide, basis, self.strength).to(written.dtype)


@dataclass(frozen=True)
class Nullu(Method):
    """Null space of invention. `start` and `end` bound the blocks, from 0, within those of `space`, which may be its folder."""

    name: ClassVar[str] = "nullu"
    summary: ClassVar[str] = "take the directions of false captions out of what the upper blocks' MLPs write"
    seam: ClassVar[Seam] = Seam.LAYERS
    forwards: ClassVar[float] = 1.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({"space": Need("null_space")})
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"strength": 0.0})
    shares_prefill: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    no_state: ClassVar[str] = "changes what blocks write at every position, which is no move of one state of the head's input"

    space: NullSpace | str | PathLike[str] = field(kw_only=True)
    strength: float = 1.0
    start: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        self.check_settings()
        object.__setattr__(self, "space", self.null_space)
        fitted = self.null_space.blocks
        if not fitted.start <= self.blocks.start <= self.blocks.stop <= fitted.stop:
            raise SettingError(
                f"start={self.start}, end={self.end}: the null space has directions of blocks {fitted.start} to "
                f"{fitted.stop - 1}; choose among these, or fit one on others"
            )

    def check_settings(self) -> None:
        check_share("strength", self.strength)
        for name in ("start", "end"):
            if (given := getattr(self, name)) is not None:
                check_count(name, given, 0)

    @property
    def null_space(self) -> NullSpace:
        return load_if_path("space", self.space, NullSpace)

    @property
    def blocks(self) -> range:
        """The blocks it acts in, from 0; none if start equals end."""
        fitted = self.null_space.blocks
        return range(
            fitted.start if self.start is None else self.start,
            fitted.stop if self.end is None else self.end,
        )

    @property
    def is_zero(self) -> bool:
        return super().is_zero or not self.blocks

    def basis(self, block: int) -> Tensor:
        """V' [K, d] of a block, in float64."""
        return self.null_space.bases[block - self.null_space.start]

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        self.null_space.require(backbone)
        mlps = block_mlps(backbone)
        hooks = {block: self._hook(backbone, mlps[block], block, tap) for block in ([] if self.is_zero else self.blocks)}
        handles: list[Removable] = [mlps[block].register_forward_hook(hook) for block, hook in hooks.items()]

        def traced(logits: Tensor) -> dict[str, Tensor]:
            shares = [hook.share.to(logits.device) for hook in hooks.values() if hook.share is not None]
            for hook in hooks.values():
                hook.share = None
            if not shares:
                return {}
            share = torch.stack(shares).mean(0).reshape(len(logits), -1)  # [B, T]
            return {"share": share[:, -logits.shape[1] :]}

        return Handles(*handles, report_logits(backbone, tap, traced))

    def _hook(self, backbone: Backbone, mlp: nn.Module, block: int, tap: Tap) -> ProjectedOutput:
        weight = next(mlp.parameters())
        device = backbone.device if weight.is_meta else weight.device  # offloaded weights come and go
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return ProjectedOutput(self.basis(block).to(device, dtype), self.strength, tap)
