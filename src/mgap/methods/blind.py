"""Blind contrast, equation 2 of the MGAP paper: subtract what the model predicts without the picture.

    extrapolate: s = l + rho (l - l_blind)      subtract: s = l - rho l_blind

`subtract` at rho / (1 + rho) chooses the same tokens as `extrapolate` at rho. This is the contrast that the paper's diagnosis
is about: plain, without a plausibility cut unless `beta` sets one. Cost: 2 forwards per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.text_only_prompts import TextOnlyPrompts
from mgap.errors import PromptError
from mgap.methods.base import Tap
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.branch import BranchMethod, Build, plausible
from mgap.methods.kinds.paired_forward import Inputs
from mgap.settings import check_choice, check_share, check_strength

NULLS = ("black_same_size", "mean_colour", "noise", "no_image")
FORMS = ("extrapolate", "subtract")


def null_image_builder(name: str, backbone: Backbone, null_image: str) -> Build:
    """A function from rows to the same rows with a null image in place of each picture; `name` is the method's, for errors.

    "no_image" gives the tokens that the chat template has for a prompt without a picture, as when a prior is fitted with it.
    """
    take_out = TextOnlyPrompts(backbone) if null_image == "no_image" else None

    def build(main: Inputs) -> Inputs:
        if backbone.pixel_keys[0] not in main:
            raise PromptError(f"{name} compares with a null image: give a picture, or leave {name} off")
        return {**main, **backbone.null_pixels(main, null_image)} if take_out is None else take_out(main)

    return build


@dataclass(frozen=True)
class Blind(BranchMethod):
    """Plain contrast with a null image."""

    name: ClassVar[str] = "blind"
    summary: ClassVar[str] = "contrast with the answer to a null image"
    moved_by: ClassVar[str] = "rho"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"rho": 0.0})

    rho: float = 1.0
    beta: float = 0.0
    null_image: str = "black_same_size"
    form: str = "extrapolate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength("rho", self.rho)
        check_share("beta", self.beta)
        check_choice("null_image", self.null_image, NULLS)
        check_choice("form", self.form, FORMS)

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:  # noqa: ARG002
        return null_image_builder(self.name, backbone, self.null_image)

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        return self.prepare(backbone, Tap())(main)

    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        scores = main - self.rho * branch if self.form == "subtract" else main + self.rho * (main - branch)
        return plausible(scores, main, self.beta), {}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:
        return (1.0, -strength) if self.form == "subtract" else super().mixture(strength, inputs)
