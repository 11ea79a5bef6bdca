"""ASD, activation steering decoding (Su et al., ACL 2025): contrast a branch steered to fact with one steered to invention.

    x_i <- x_i + lam_pos v_i  in the main branch,   x_i <- x_i - lam_neg v_i  in the second,   at the output of block i
    s = CD(l_pos, l_neg, alpha, beta)

Both branches see the same inputs, so the picture is encoded once; the plain model does not run. v_i comes from labelled
captions (priors/steering.py). Steered keys and values stay in each branch's own rows of the cache. Cost: 2 forwards per token.
We know of no code by the authors: the defaults follow two reimplementations, and where these differ there is a setting
(`layers`, `positions`, `unit`). beta is ours; 0 turns it off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mgap.backbones.base import Backbone
from mgap.methods.base import Handles, Need, Removable, Seam, Tap, load_if_path
from mgap.methods.kinds.branch import BranchMethod, contrast
from mgap.methods.kinds.layers import block_numbers, layer_indices
from mgap.methods.kinds.main_rows import RowSplit, row_split_of
from mgap.methods.kinds.paired_forward import Inputs, PairedForward
from mgap.priors.steering import Steering
from mgap.settings import check_choice, check_share, check_strength, check_switch
from mgap.types import Mode

POSITIONS = ("last", "all")


def steer(state: Tensor, vector: Tensor, strength: float) -> Tensor:
    """x + strength v [..., d], computed in the wider dtype (v has float32 or wider), returned in the state's dtype."""
    return torch.add(state, vector.to(state.device), alpha=strength).to(state.dtype)


class Steered:
    """The hook of one block: moves main rows along the vector, and the branch's rows against it."""

    def __init__(self, vector: Tensor, method: ASD, row_split: RowSplit) -> None:
        self.vector, self.method, self.row_split = vector, method, row_split
        self.offsets: dict[tuple[int, int], Tensor] = {}  # (main rows, all) -> [all, 1, d], built once per generation

    def __call__(self, _block: nn.Module, _args: Any, output: Any) -> Any:
        if self.row_split.is_paused:
            return output
        if isinstance(output, tuple):
            return (self.shift(output[0]), *output[1:])
        return self.shift(output)

    def shift(self, state: Tensor) -> Tensor:  # [B, T, d]; the last column of a left-padded batch is real in every row
        first = state.shape[1] - 1 if self.method.positions == "last" else 0
        if first == 0:
            return steer(state, self._offset(state), 1.0)
        return torch.cat([state[:, :first], steer(state[:, first:], self._offset(state), 1.0)], dim=1)

    def _offset(self, state: Tensor) -> Tensor:
        """What is added to each row, [B, 1, d]."""
        rows = len(state) if self.row_split.main is None else self.row_split.main
        key = rows, len(state)
        if key not in self.offsets:
            strengths = torch.tensor([self.method.lam_pos] * rows + [-self.method.lam_neg] * (len(state) - rows))
            if len(self.offsets) > 1:  # main and branch may be separate forwards
                self.offsets.clear()
            self.offsets[key] = (strengths.to(self.vector)[:, None, None] * self.vector).to(state.device)
        return self.offsets[key]


@dataclass(frozen=True)
class ASD(BranchMethod):
    """Activation steering decoding. `layers` counts blocks from 1; None: all. `steering` may be the folder it was saved to."""

    name: ClassVar[str] = "asd"
    summary: ClassVar[str] = "contrast a branch steered to fact with one steered to invention"
    seam: ClassVar[Seam] = Seam.LAYERS
    modes: ClassVar[frozenset[Mode]] = BranchMethod.modes - {Mode.STATIC, Mode.COMPILE}
    needs_picture: ClassVar[bool] = False
    moved_by: ClassVar[str] = "alpha"  # at 0 the state is steered to fact, not plain
    needs: ClassVar[Mapping[str, Need]] = MappingProxyType({"steering": Need("steering")})
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"lam_pos": 0.0, "lam_neg": 0.0})

    steering: Steering | str | PathLike[str] = field(kw_only=True)
    lam_pos: float = 0.2
    lam_neg: float = 0.4
    alpha: float = 1.0
    layers: int | Sequence[int] | None = None
    positions: str = "last"
    unit: bool = False
    beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(sorted(set(layer_indices(self.layers)))))
        object.__setattr__(self, "steering", self._steering)

    def check_settings(self) -> None:
        super().check_settings()
        for name in ("lam_pos", "lam_neg", "alpha"):
            check_strength(name, getattr(self, name))
        check_share("beta", self.beta)
        check_choice("positions", self.positions, POSITIONS)
        check_switch("unit", self.unit)
        if self.layers is not None:
            layer_indices(self.layers)

    @property
    def _steering(self) -> Steering:
        return load_if_path("steering", self.steering, Steering)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        self._steering.require(backbone)
        chosen = block_numbers(self.layers, len(backbone.layers))
        vectors = self._steering.units if self.unit else self._steering.vectors
        row_split = row_split_of(backbone.model)
        handles: list[Removable] = [PairedForward(backbone, self, tap)]
        if self.lam_pos or self.lam_neg:
            for i in chosen:
                hook = Steered(vectors[i - 1].float().to(backbone.device), self, row_split)
                handles.append(backbone.layers[i - 1].register_forward_hook(hook))
        return Handles(*handles)

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:  # noqa: ARG002
        return dict(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return contrast(main, branch, self.alpha, self.beta), {}
