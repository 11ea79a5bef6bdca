"""Methods that run the model a second time on other inputs and contrast the two predictions (methods/README.md).

    CD(l, l', alpha, beta):  s = (1 + alpha) l - alpha l',   s[v] = -inf where l[v] < max l + ln(beta)

A method defines what its second branch sees and how the two logits combine (`branch`, `combine`); paired_forward.py runs it. A
method with several branches overrides `builders` and `weigh`; where their number depends on the rows, `branches`. Methods that
read the branch's state instead of its logits are in blind_branch.py.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.decoding_limits import room_behind
from mgap.backbones.head import Head
from mgap.errors import PromptError
from mgap.methods.base import Method, Removable, Seam, Tap
from mgap.methods.head_inputs import HeadInputs, Weight, mix_states
from mgap.methods.kinds.paired_forward import ALONE, Inputs, PairedForward, RowState, Weigh
from mgap.settings import check_choice
from mgap.types import ALL_MODES, Mode

Build = Callable[[Inputs], Inputs]  # the main inputs -> a branch's
BuildAll = Callable[[Inputs], list[Inputs]]  # the main inputs -> those of each branch


@dataclass(frozen=True)
class PairedMethod(Method):
    """Cost: 2 forwards per token, and one more for each further branch. All decoding modes except assisted.

    Static and compiled steps work in `model.answer` and the like, with a batched branch. `branch_mode` is "batched" (a branch
    is extra rows of the same forward) or "sequential" (a separate forward, for half the memory at a time); the results agree up
    to rounding.
    """

    seam: ClassVar[Seam] = Seam.BRANCH
    forwards: ClassVar[float] = 2.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES - {Mode.ASSISTED}
    needs_picture: ClassVar[bool] = True
    branch_modes: ClassVar[tuple[str, ...]] = ("batched", "sequential")

    branch_mode: str = "batched"

    def __post_init__(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        check_choice("branch_mode", self.branch_mode, self.branch_modes)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return PairedForward(backbone, self, tap)

    def branches(self, backbone: Backbone, tap: Tap) -> BuildAll:
        """Called on attaching: a function from the main inputs to those of every branch; by default one per builder."""
        builders = self.builders(backbone, tap)
        return lambda main: [build(main) for build in builders]

    def builders(self, backbone: Backbone, tap: Tap) -> list[Build]:
        """Called on attaching: one `prepare` result per branch."""
        return [self.prepare(backbone, tap)]

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:  # noqa: ARG002
        """Called on attaching: a function from the main inputs to the branch's.

        It may run the model (and report that to the tap), and may cache while the method is attached. Raises what can be known
        now.
        """
        return partial(self.branch, backbone)

    @abstractmethod
    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        """The branch's inputs, one row per row of the main inputs; lengths may differ. Raises if they cannot be built.

        A key `ALONE`, bool [B], marks rows that decode plainly. Pictures may have other sizes than the main rows'.
        """

    @abstractmethod
    def weigher(self, backbone: Backbone) -> Weigh:
        """Called on attaching: a function that combines the predictions into scores at every token."""

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:  # noqa: ARG002
        """More numbers [B] for a trace; called only while a listener is attached."""
        return {}


@dataclass(frozen=True)
class LogitsMethod(PairedMethod):
    """A method that combines the logits of the main rows and of one or more branches."""

    def weigher(self, backbone: Backbone) -> Weigh:  # noqa: ARG002
        return self.weigh

    @abstractmethod
    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:
        """Scores from float logits [B, vocab] at the step-th new token (from 1), and numbers [B] for the trace.

        `kept` belongs to one generation and follows the beams. At the first token it holds `ROW_KEYS` of a branch, and what the
        method's own hooks have put there; of the latter, what is needed here must be among the traced numbers.
        """

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:  # noqa: ARG002
        """The weights of the main prediction and of each branch's in the scores, at a strength; for methods that have one."""
        return 1 + strength, -strength

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        """Since the head is linear, contrasting two predictions means decoding from h + strength (h - h_branch)."""
        self.require_state()
        mixed = mix_states(self.name, head, self.mixture(strength, inputs), (inputs.h, *inputs.branches))
        return torch.where(inputs.values[ALONE].bool().unsqueeze(-1), inputs.h, mixed) if ALONE in inputs.values else mixed


@dataclass(frozen=True)
class BranchMethod(LogitsMethod):
    """A method that contrasts logits."""

    @abstractmethod
    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Scores from the float logits [B, vocab] of both at the step-th new token (from 1), and numbers [B] for the trace."""

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        """Called at every token; by default `combine`, for one branch and no state per row."""
        (branch,) = branches
        return self.combine(main, branch, step)

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {"distance": distance(main, branches[0])}


def contrast(main: Tensor, branch: Tensor, alpha: float | Tensor, beta: float) -> Tensor:
    """CD above; `alpha` is a number, or one per row [B, 1]."""
    return plausible((1 + alpha) * main - alpha * branch, main, beta)


def plausible(scores: Tensor, main: Tensor, beta: float) -> Tensor:
    """Drop tokens less likely, in the main branch, than beta times its most likely token, which always stays."""
    if beta == 0:
        return scores
    return scores.masked_fill(main < main.amax(-1, keepdim=True) + math.log(beta), -torch.inf)


def distance(main: Tensor, branch: Tensor) -> Tensor:
    """Total variation between the two predictions, in [0, 1], one per row."""
    return (main.softmax(-1) - branch.softmax(-1)).abs().sum(-1) / 2


def check_pictures(name: str, backbone: Backbone, main: Inputs, does: str = "masks a part") -> None:
    """Refuse rows without a picture, for a method whose branch sees a part of it."""
    if backbone.pixel_keys[0] not in main or not backbone.image_mask(main).any(-1).all():
        raise PromptError(f"{name} {does} of the picture: give one in every row, or leave {name} off")


def check_length(name: str, backbone: Backbone, branch: Inputs) -> Inputs:
    """Refuse a branch whose prompt is longer than the model can read."""
    room_behind(backbone, branch["input_ids"].shape[1], f"{name}'s branch")
    return branch
