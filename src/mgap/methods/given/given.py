"""Decoding with evidence that the user brings per sample: ConVis, AGLA, HALC, MARINE and CICD are settings of it.

    l main logits, l_m those of branch m of M, e = mean_m l_m                  dropped, "the cut": l[v] < max l + ln(beta)
    contrast:  s = (1 + alpha) l - alpha e, with the cut        agree:  s = l + alpha e, with the cut
    guide:     s = log softmax((1 - alpha) log softmax l + alpha log softmax e)
    pair:      s = l_j - weight l_i,  (i, j) = argmax_{i<j} D_ij,  D_ij = (KL(m || p_i) + KL(m || p_j))/2,  m = (p_i + p_j)/2

A branch shows another picture under the sample's prompt, or its picture under another prompt. With `gate`, contrast and agree
leave a token alone whose JS divergence of softmax l and softmax e is below it. Cost: 1 + M forwards per token and as many
pictures, besides what it costs to bring the evidence; a text needs no further picture. What each of the five does that this
cannot is in docs/methods/given.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from os import PathLike
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.errors import PromptError, SettingError
from mgap.methods.base import Tap
from mgap.methods.given.branch_rows import build_branches
from mgap.methods.given.evidence import TEMPLATE, Brings, Evidence, EvidenceTable, check_template, read_evidence
from mgap.methods.given.find_evidence import EvidenceFinder
from mgap.methods.head_inputs import HeadInputs, Weight
from mgap.methods.kinds.branch import BuildAll, LogitsMethod, check_length, contrast, distance, plausible
from mgap.methods.kinds.paired_forward import COUNT, Inputs, RowState
from mgap.settings import check_choice, check_count, check_share, check_strength

MISSING = ("refuse", "plain")
OPEN, JS = "open", "js"  # of the gate, in a trace
APPLIES = {  # settings by the way of combining
    "contrast": {"alpha": 1.0, "beta": 0.1, "gate": 0.0},
    "agree": {"alpha": 1.0, "beta": 0.1, "gate": 0.0},
    "guide": {"alpha": 1.0},
    "pair": {"weight": 0.05},
}
CHECKS = {"alpha": check_strength, "beta": check_share, "weight": check_strength, "gate": check_strength}
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "convis": {"combine": "contrast", "alpha": 1.0, "beta": 0.0, "most": 4},
        "agla": {"combine": "agree", "alpha": 2.0, "beta": 0.5, "most": 1},
        "halc": {"combine": "pair", "weight": 0.05, "most": 4},
        "marine": {"combine": "guide", "alpha": 0.7},
        "cicd": {"combine": "contrast", "alpha": 1.0, "beta": 0.1, "most": 1},
    }
)


def mean_logits(branches: Sequence[Tensor], count: Tensor) -> Tensor:
    """The mean [B, vocab] of each row's first `count` [B] branches."""
    shares = branch_shares(count.to(branches[0]), len(branches))
    total: Tensor = sum(share * branch for share, branch in zip(shares, branches, strict=True))  # type: ignore[assignment]
    return total


def branch_shares(count: Tensor, branches: int) -> list[Tensor]:
    """Each branch's share [B, 1] of the mean, for rows that have `count` [B] of them."""
    whole = count.clamp_min(1).unsqueeze(-1)
    return [(place < count.unsqueeze(-1)).to(count.dtype) / whole for place in range(branches)]


def guide(main: Tensor, given: Tensor, alpha: float) -> Tensor:
    """Log-probabilities between the two predictions, and beyond the second for alpha above 1."""
    return ((1 - alpha) * main.log_softmax(-1) + alpha * given.log_softmax(-1)).log_softmax(-1)


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """JS divergence of two predictions [..., vocab] in nats."""
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    m = _log_mean(p, q)
    return ((p.exp() * (p - m)).nansum(-1) + (q.exp() * (q - m)).nansum(-1)) / 2  # a masked token (-inf) adds nothing


def pair_divergence(one: Tensor, other: Tensor) -> Tensor:
    """D of two predictions [..., vocab] in nats: unlike JS, the mean is the first argument."""
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    m = _log_mean(p, q)
    return (m.exp() * (m - (p + q) / 2)).sum(-1)


def _log_mean(p: Tensor, q: Tensor) -> Tensor:
    return torch.logaddexp(p, q) - math.log(2)


def choose_pair(branches: Sequence[Tensor], count: Tensor) -> tuple[Tensor, Tensor]:
    """The two of each row's first `count` branches that differ most, [B] each, the earlier one first; the first such pair."""
    pairs = list(combinations(range(len(branches)), 2))
    differences = torch.stack([pair_divergence(branches[i], branches[j]) for i, j in pairs])  # [pairs, B]
    first, second = torch.tensor(pairs, device=differences.device).unbind(-1)  # [pairs] each
    best = differences.masked_fill(second.unsqueeze(-1) >= count.to(second.device), -torch.inf).argmax(0)  # [B]
    return first[best], second[best]


@dataclass(frozen=True)
class Given(LogitsMethod):
    """Contrasts, agrees, guides or pairs with what the user brings. Settings that are not given come from the preset.

    `evidence` is a file of JSON lines or its folder, a mapping from a picture's name (or its name and a prompt) to `Evidence`,
    or a callable `Brings`. Of a sample's pictures the first `most` are shown; for `pair`, the smallest field of view comes
    first. `template` writes a file's objects into the prompt. A sample without evidence is refused, or with `missing="plain"`
    decoded plainly.
    """

    name: ClassVar[str] = "given"
    summary: ClassVar[str] = "contrast, agree, guide or pair with pictures or texts that you bring for each sample"
    besides: ClassVar[str] = "1 more for each further picture of a sample, and what brings them"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    moved_by: ClassVar[str] = "alpha"
    no_state: ClassVar[str] = "decodes from no one state that alpha moves, with combine=guide and combine=pair"
    zero: ClassVar[Mapping[str, Any]] = MappingProxyType({"alpha": 0.0, "beta": 0.0})

    evidence: Brings | EvidenceTable | Mapping[Any, Evidence] | str | PathLike[str] = field(kw_only=True)
    combine: str | None = None
    alpha: float | None = None
    beta: float | None = None
    weight: float | None = None
    gate: float | None = None
    most: int | None = None
    missing: str = "refuse"
    template: str | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "evidence", read_evidence(self.evidence))
        for name, check in CHECKS.items():
            if (value := getattr(self, name)) is not None:
                check(name, value)
        self._fill()
        check_choice("missing", self.missing, MISSING)
        check_count("most", self.most, least=2 if self.combine == "pair" else 1)
        if self.template is not None:
            check_template(self.template)
            if not isinstance(self.evidence, EvidenceTable) or not self.evidence.has_objects:
                raise SettingError(
                    "template writes the objects of an evidence file into the prompt: there are none, leave it out"
                )

    def _fill(self) -> None:
        """Take what is not given from the preset, then from the defaults; refuse what the way of combining has no use for."""
        preset = {} if self.preset is None else self.presets[check_choice("preset", self.preset, self.presets)]
        self.fill_in({"combine": preset.get("combine", "contrast"), "most": preset.get("most", 4)})
        own = APPLIES[check_choice("combine", str(self.combine), APPLIES)]
        self.fill_in({name: preset.get(name, default) for name, default in own.items()})
        for name in CHECKS:
            if name not in own and getattr(self, name) is not None:
                raise SettingError(f"{name} has no use in combine={self.combine}, which has {', '.join(own)}: leave it out")

    @classmethod
    def files_named(cls, settings: Mapping[str, Any]) -> dict[str, str]:
        table = read_evidence(settings["evidence"])
        return {table.path: table.sha256} if isinstance(table, EvidenceTable) and table.path else {}

    def branches(self, backbone: Backbone, tap: Tap) -> BuildAll:
        backbone.render("?")  # needs the processor: fails now, not later
        find = EvidenceFinder(backbone, tap, read_evidence(self.evidence), self.template or TEMPLATE, int(self.most or 0))

        def build(main: Inputs) -> list[Inputs]:
            if backbone.pixel_keys[0] not in main:
                raise PromptError(f"{self.name} has evidence about pictures: give a picture, or leave {self.name} off")
            backbone.rewrite(main, lambda ids, *_: ids)  # raises now if a row does not have exactly one picture
            found = find(main)
            for name, evidence in found:
                self._check(name, evidence)
            branches = build_branches(backbone, main, [evidence for _, evidence in found])
            return [check_length(self.name, backbone, branch) for branch in branches]

        return build

    def _check(self, name: str, evidence: Evidence | None) -> None:
        """Refuse a sample that cannot be decoded with its evidence."""
        if evidence is None and self.missing == "refuse":
            raise PromptError(
                f"{self.name} has no evidence for {name}: add it, or decode such samples plainly with missing=plain"
            )
        if evidence is not None and self.combine == "pair" and len(evidence.pictures) < 2:
            raise PromptError(f"combine=pair contrasts two pictures, and {name} has {len(evidence.pictures)}: bring more")

    def branch(self, backbone: Backbone, main: Inputs) -> Inputs:
        return self.branches(backbone, Tap())(main)[0]

    def weigh(self, main: Tensor, branches: Sequence[Tensor], step: int, kept: RowState) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        count = kept.get(COUNT, torch.full(main.shape[:1], len(branches), device=main.device))  # [B]
        if self.combine == "pair":
            if len(branches) < 2:  # no row has evidence
                return main, {}
            smaller, larger = choose_pair(branches, count)
            rows, stacked = torch.arange(len(main), device=main.device), torch.stack(list(branches))  # [M, B, vocab]
            scores = stacked[larger, rows] - float(self.weight or 0.0) * stacked[smaller, rows]
            return scores, {"smaller": smaller.to(main), "larger": larger.to(main)}
        given, alpha, beta = mean_logits(branches, count), float(self.alpha or 0.0), float(self.beta or 0.0)
        if self.combine == "guide":
            return guide(main, given, alpha), {}
        is_added = self.combine == "agree"
        scores = plausible(main + alpha * given, main, beta) if is_added else contrast(main, given, alpha, beta)
        if not self.gate:
            return scores, {}
        js = divergence(main, given)  # [B]
        is_open = js >= self.gate
        return torch.where(is_open.unsqueeze(-1), scores, main), {JS: js, OPEN: is_open.to(main)}

    def traced(self, main: Tensor, branches: Sequence[Tensor], step: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {"distance": distance(main, branches[0])}

    def require_state(self) -> None:
        if self.combine not in ("contrast", "agree"):
            raise SettingError(f"{self.name} {self.no_state}: leave {self.name} out")

    def mixture(self, strength: Weight, inputs: HeadInputs) -> tuple[Weight, ...]:
        """Plain weights where the gate is closed."""
        if OPEN in inputs.values:
            strength = strength * inputs.values[OPEN].unsqueeze(-1)
        shares = branch_shares(inputs.values[COUNT], len(inputs.branches))
        if self.combine == "agree":
            return 1.0, *(strength * share for share in shares)
        return 1 + strength, *(-strength * share for share in shares)
