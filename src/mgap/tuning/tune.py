"""Choose MGAP's settings for a model: read states once, try every setting of a grid on them, rank by one rule, record it all.

development = pocket_questions(300)                          # or own_questions("mine.jsonl", "photos")
states = read_states(model, development)                     # the one pass through the model
tuned = tune(model, prior, development, states, rule="departure")
tuned.prior.save("priors/tuned")                             # mgap.MGAP(prior, preset="tuned")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import torch

import mgap
from mgap.benchmarks.yesno_parsers import DEFAULT
from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold
from mgap.priors.subspace import Subspace
from mgap.settings import check_choice
from mgap.tuning.choice import (
    RULES,
    Array,
    SettingChoice,
    SettingFigures,
    choose,
    count_changes,
    departed_tally,
    farthest_points,
    label_tally,
    label_values,
    verdict_indices,
)
from mgap.tuning.departed import are_outside
from mgap.tuning.development import Development, States
from mgap.tuning.sweep import Grid, Point, cut_states, sweep

_RULE_TEXTS = {
    "departure": "without labels: along alpha, up to the largest of the grid, the last step before the share of states outside "
    "those of plain decoding exceeds the limit, which is delta, or the share of plain states outside where that is larger; of "
    "the ranks and lambdas, the one whose states are moved farthest on average",
    "labels": "with labels: the setting with the highest mean of {objective} over the splits; of equal ones the smaller step",
}


class Judged:
    """The results of several settings on a development set, from its states alone; the first setting is plain decoding."""

    def __init__(
        self,
        model: Model,
        prior: Subspace,
        development: Development,
        states: States,
        points: Sequence[Point],
        *,
        k: int = 10,
        delta: float = 0.05,
        metric: str = "euclidean",
        progress: Progress | None = None,
    ) -> None:
        prior.require(model.backbone)
        self.head, self.prior, self.basis = model.backbone.probe_head(), prior, prior.basis
        self.points, self.development, self.states = list(points), development, states
        device = model.backbone.device
        self.manifold = Manifold.of(Bank.of(states.bank), k=k, delta=delta, metric=metric, device=device)
        verdict_of_token = torch.tensor(verdict_indices(model.backbone.words(range(self.head.vocab_size))))
        self.swept = sweep(
            self.head,
            self.basis,
            states.judged,
            self.points,
            batch_size=states.batch_size,
            progress=None if progress is None else lambda done: progress("settings tried on states", done, len(states.judged)),
        )
        self.row_verdicts: Array = verdict_of_token[self.swept.tokens].numpy()  # [points, rows] into VERDICTS
        self._plain = states.judged.to(self.head.device)
        self._distances = self.manifold.distances(self._plain)
        self._departed: dict[int, Array] = {}

    @cached_property
    def verdicts(self) -> Array:
        """The verdicts by sample, [points, samples]: a question of several splits is read once and counts in each."""
        by_sample: Array = self.row_verdicts[:, self.development.row_of]
        return by_sample

    def departed(self, index: int) -> Array:
        """Whether each row's state is outside under the setting at `index`, [rows]."""
        if index not in self._departed:
            size = self.states.batch_size
            moved = cut_states(self.head, self.basis, self._plain, self.points[index], batch_size=size)
            self._departed[index] = are_outside(self.manifold, self._plain, self._distances, moved).cpu().numpy()
        return self._departed[index]

    def figures(self, index: int) -> SettingFigures:
        development, verdicts = self.development, self.verdicts[index]
        return SettingFigures(
            point=self.points[index],
            step=float(self.swept.steps[index]),
            departed=departed_tally(development.rows, self.departed(index)),
            labels=label_tally(development.judged, verdicts) if development.has_labels else None,
            turned=count_changes(self.verdicts[0], verdicts),
        )


@dataclass(frozen=True)
class Tuned:
    """The outcome of a tuning: the chosen setting, the rule, and the data behind it."""

    judged: Judged
    values: Mapping[int, float]  # by index: the values that the rule ranks by, for the settings it considers
    choice: SettingChoice
    about: Mapping[str, Any]  # rule, grid, data, model, date: the record without the results

    def figures(self, index: int) -> SettingFigures:
        """The figures of the setting at `index` in the grid."""
        return replace(self.judged.figures(index), value=self.values.get(index))

    @cached_property
    def picked(self) -> SettingFigures:
        return self.figures(self.choice.picked)

    @cached_property
    def plain(self) -> SettingFigures:
        return self.figures(0)

    @cached_property
    def runner_up(self) -> SettingFigures | None:
        return None if self.choice.runner_up is None else self.figures(self.choice.runner_up)

    @property
    def is_at_cap(self) -> bool:
        """Whether the picked alpha is the largest of the grid."""
        return self.picked.point.alpha == max(point.alpha for point in self.judged.points) > 0

    def record(self) -> dict[str, Any]:
        """Plain JSON, for the prior."""
        settings = {"chosen": self.picked, "plain": self.plain, "runner_up": self.runner_up}
        figures = {name: setting.to_json() for name, setting in settings.items() if setting is not None}
        return {"settings": self.picked.point.to_json(), **self.about, "figures": figures, "alike": self.choice.alike}

    @property
    def prior(self) -> Subspace:
        """The prior with this tuning recorded in it."""
        return replace(self.judged.prior, tuning=self.record())


def tune(
    model: Model,
    prior: Subspace,
    development: Development,
    states: States,
    *,
    rule: str = "departure",
    objective: str = "f1",
    grid: Grid | None = None,
    k: int = 10,
    delta: float = 0.05,
    metric: str = "euclidean",
    progress: Progress | None = None,
) -> Tuned:
    """Choose by a rule; `objective`, f1 or accuracy, belongs to the rule labels. Runs none of the model's layers."""
    _check(rule, development)
    points = (grid or Grid()).points()
    judged = Judged(model, prior, development, states, points, k=k, delta=delta, metric=metric, progress=progress)
    return decide(judged, rule, objective, progress=progress)


def decide(judged: Judged, rule: str, objective: str = "f1", *, progress: Progress | None = None) -> Tuned:
    """As `tune`, from settings judged already: several rules then cost little more than one."""
    development, steps = judged.development, judged.swept.steps.tolist()
    _check(rule, development)
    limit = max(judged.manifold.delta, float(judged.departed(0).mean()))
    if rule == "labels":
        values = label_values(development.judged, judged.verdicts, objective)
    else:
        report = None if progress is None else lambda done, total: progress("paths along alpha", done, total)
        farthest = farthest_points(judged.points, lambda index: float(judged.departed(index).mean()), limit, report)
        values = {index: steps[index] for index in farthest}
    stated = {"name": rule, "stated": _RULE_TEXTS[rule].format(objective=objective)}
    about = {
        "rule": {**stated, **({"objective": objective} if rule == "labels" else {})},
        "outside": {**judged.manifold.to_json(), "limit": limit},
        "grid": {name: sorted({getattr(point, name) for point in judged.points}) for name in judged.points[0].to_json()},
        "data": {**development.to_json(), "parser": DEFAULT, "read": "the first token"},
        "model": {
            "dtype": str(judged.head.dtype).removeprefix("torch."),
            "device": judged.head.device.type,
            "batch_size": judged.states.batch_size,
        },
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mgap": mgap.__version__,
    }
    return Tuned(judged, values, choose(values, judged.points, steps, judged.row_verdicts), about)


def _check(rule: str, development: Development) -> None:
    check_choice("rule", rule, RULES)
    if rule == "labels" and not development.has_labels:
        raise SettingError("rule labels: these questions have no labels; give some, or take the rule departure")
