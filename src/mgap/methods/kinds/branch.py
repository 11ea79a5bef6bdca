"""Methods that run the model once more on other inputs and contrast the two predictions (methods/README.md).

    CD(l, l', alpha, beta):  s = (1 + alpha) l - alpha l',   s[v] = -inf where l[v] < max l + ln(beta)

A method says what its second branch sees and how the two logits combine (`branch`, `combine`); paired_forward.py runs it. A
method with several branches says so in `builders` and `weigh`. Methods that read the branch's state instead of its logits are
in blind_branch.py.
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
from mgap.backbones.head import Head
from mgap.errors import PromptError
from mgap.methods.base import Method, Removable, Seam, Tap
from mgap.methods.head_inputs import HeadInputs, Weight, mix_states
from mgap.methods.kinds.paired_forward import ALONE, Inputs, Kept, PairedForward, Weigh
from mgap.settings import check_choice
from mgap.types import ALL_MODES, Mode

Build = Callable[[Inputs], Inputs]  # the main inputs -> a branch's


@dataclass(frozen=True)
class PairedMethod(Method):
    """Cost: 2 forwards a token, and one for each further branch. Every decoding mode but assisted; static and compiled steps
    in `model.answer` and its like, with a batched branch.

    `branch_mode` is "batched" (a branch is extra rows of the same forward) or "sequential" (a forward of its own, for half the
    memory at a time); the results agree to rounding.
    """

    seam: ClassVar[Seam] = Seam.BRANCH
    forwards: ClassVar[float] = 2.0
    modes: ClassVar[frozenset[Mode]] = ALL_MODES - {Mode.ASSISTED}
    branch_modes: ClassVar[tuple[str, ...]] = ("batched", "sequential")

    branch_mode: str = "batched"

    def __post_init__(self) -> None:
        check_choice("branch_mode", self.branch_mode, self.branch_modes)

    def attach(self, backbone: Backbone, tap: Tap) -> Removable:
        return PairedForward(backbone, self, tap)

    def builders(self, backbone: Backbone, tap: Tap) -> list[Build]:
        """What decoding calls on attaching: `prepare`, once for each branch."""
        return [self.prepare(backbone, tap)]

    def prepare(self, backbone: Backbone, tap: Tap) -> Build:  # noqa: ARG002
        """On attaching: what makes the branch's inputs from the main ones. It may run the model (and tell the tap so), and
        remember for as long as the method is attached. Raises what can be known now.
        """
        return partial(self.branch, backbone)

    @abstractmethod
    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        """What the branch sees, a row for every row of the main inputs; lengths may differ. Raises if it cannot be built.

        A key `ALONE`, bool [B], marks rows that decode as if there were no branch.
        """

    @abstractmethod
    def weigher(self, backbone: Backbone) -> Weigh:
        """On attaching: what makes scores of the predictions at every token."""

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Further numbers [B] for a trace, which decoding does without: asked for only while somebody listens."""
        return {}


@dataclass(frozen=True)
class BranchMethod(PairedMethod):
    """One that contrasts logits."""

    @abstractmethod
    def combine(self, main: Tensor, branch: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Float logits [B, vocab] of both at the step-th new token (from 1): the scores, and numbers [B] that it used."""

    def weigher(self, backbone: Backbone) -> Weigh:  # noqa: ARG002
        return self.weigh

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: Kept) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        """What decoding calls: `combine`, for methods with one branch that remember nothing of a row. `kept` belongs to one
        generation: it is empty at the first token, and follows the beams.
        """
        (branch,) = branches
        return self.combine(main, branch, step)

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {"distance": distance(main, branches[0])}

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:  # noqa: ARG002
        """How much of the main prediction and of each branch's is in the scores, at a strength; for methods that have one."""
        return 1 + strength, -strength

    def effective_states(self, head: Head, inputs: HeadInputs, strength: Weight) -> Tensor:
        """The head is linear: contrasting two predictions is decoding from h + strength (h - h_branch)."""
        self.require_state()
        mixed = mix_states(self.name, head, self.mixture(strength, inputs), (inputs.h, *inputs.branches))
        return torch.where(inputs.values[ALONE].bool().unsqueeze(-1), inputs.h, mixed) if ALONE in inputs.values else mixed


def contrast(main: Tensor, branch: Tensor, alpha: float | Tensor, beta: float) -> Tensor:
    """CD above; `alpha` is a number or one a row [B, 1]."""
    return plausible((1 + alpha) * main - alpha * branch, main, beta)


def plausible(scores: Tensor, main: Tensor, beta: float) -> Tensor:
    """Drop the tokens that the main branch finds less likely than beta times its favourite, which always stays."""
    if beta == 0:
        return scores
    return scores.masked_fill(main < main.amax(-1, keepdim=True) + math.log(beta), -torch.inf)


def distance(main: Tensor, branch: Tensor) -> Tensor:
    """How far the two predictions are apart: total variation in [0, 1], one a row."""
    return (main.softmax(-1) - branch.softmax(-1)).abs().sum(-1) / 2


def check_room(name: str, backbone: Backbone, branch: Inputs) -> Inputs:
    """Refuse a branch whose prompt is longer than the model reads."""
    length, most = branch["input_ids"].shape[1], backbone.config.get_text_config().max_position_embeddings
    if length > most:
        raise PromptError(f"{name}: its branch has {length} tokens and the model reads {most}; shorten the prompt")
    return branch
