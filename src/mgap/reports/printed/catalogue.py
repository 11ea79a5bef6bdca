"""Which printed figures runs can give: decided by what the runs are, drawn for all of them or refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mgap.errors import SettingError
from mgap.io.output_folder import write_files
from mgap.pages.print_figures import COLOURS, FORMATS, Print
from mgap.reports.diagnosis_sections import analysis_prints
from mgap.reports.printed.bars import print_bars
from mgap.reports.printed.curves import print_departures, print_sensitivity
from mgap.reports.printed.tradeoff import NEEDED, STRENGTHS, print_tradeoff
from mgap.reports.report_plots import departure_lines, points_on_axis, same_figures
from mgap.reports.score_tables import run_names
from mgap.reports.scores import Scores

PRINTED = (("CHAIRs", "CHAIRi", "recall"), ("chair", "hal", "cover"), ("accuracy", "precision", "f1"))
SIDE_BY_SIDE = 4  # runs in one figure
CAPTIONS = "captions.md"

Named = tuple[str, Scores]


def draw_prints(runs: Sequence[Scores], beside: str | None = None) -> list[Print]:
    """Runs along an axis stand side by side in one figure; every other run has its own. Refuses a run that gives none.

    `beside` names the printed backbone whose figures are shown too; default: the one of the model's family.
    """
    named = list(zip(run_names(runs), runs, strict=True))
    for _, scores in named:
        _refuse_empty(scores)
    along = [one for one in named if _is_along(one[1])]
    found = [("", one) for one in _sensitivities(along, beside)]  # of several runs together
    for name, scores in named:
        if scores.run.plan.get("departure"):
            prints = [*print_departures("departures", name, scores, beside), *analysis_prints(name, scores)]
        else:
            prints = [*(_tradeoffs(name, scores) if _is_along(scores) else _bars(name, scores, beside))]
        found += [(name, one) for one in prints]
    return _with_own_names(found)


def save_prints(prints: Sequence[Print], folder: str | os.PathLike[str]) -> list[Path]:
    """Every figure in all its formats, and their captions in one file."""
    paths = [path for one in prints for path in one.save(folder)]
    files = [f"## {one.name}\n\n{one.caption}\n\n" + ", ".join(f"{one.name}.{form}" for form in FORMATS) for one in prints]
    return [*paths, *write_files(folder, {CAPTIONS: "\n\n".join(files) + "\n"})]


def _sensitivities(named: Sequence[Named], beside: str | None) -> Iterator[Print]:
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Named]] = {}
    for name, scores in named:
        for figures, groups in _sets(scores):
            alike.setdefault((figures, groups), []).append((name, scores))
    for (figures, groups), runs in alike.items():
        for first in range(0, len(runs), SIDE_BY_SIDE):
            yield print_sensitivity("sensitivity", runs[first : first + SIDE_BY_SIDE], figures, groups, beside)


def _tradeoffs(name: str, scores: Scores) -> Iterator[Print]:
    axis = scores.run.plan["experiment"]["axis"]
    for figures, groups in same_figures(scores).items():
        if axis in STRENGTHS and set(NEEDED) <= set(figures):
            yield print_tradeoff(f"precision-recall-{axis}", name, scores, groups)


def _bars(name: str, scores: Scores, beside: str | None) -> Iterator[Print]:
    sets = list(_sets(scores))
    for figures, groups in sets:
        own = "bars" if len(sets) == 1 else f"bars-{_slug(groups[-1])}"  # the last group sums up the others, where one does
        yield print_bars(own, name, scores, figures, groups, beside)


def _sets(scores: Scores) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Figures worth printing with the groups that have them; groups that have no shares are not drawn."""
    for figures, groups in same_figures(scores).items():
        shares = [figure for figure in figures if scores.figures[figure].percent]
        chosen = next((names for names in PRINTED if set(names) <= set(shares)), tuple(shares[:3]))
        if chosen:
            yield chosen, tuple(groups)


def _is_along(scores: Scores) -> bool:
    return bool((scores.run.plan.get("experiment") or {}).get("axis")) and len(points_on_axis(scores)) > 1


def _refuse_empty(scores: Scores) -> None:
    """A run must have something to compare, and no more than can be told apart."""
    folder = scores.run.folder
    if scores.run.plan.get("departure"):
        if not departure_lines(scores):
            raise SettingError(f"{folder}: no method was measured at two strengths, so it has no figure; leave --figures out")
        return
    methods = [label for label, result in scores.results.items() if result.groups]
    if not _is_along(scores) and len(methods) < 2:
        raise SettingError(f"{folder}: one method and no axis, so it has no figure to compare in; leave --figures out")
    if not _is_along(scores) and len(methods) > len(COLOURS):
        raise SettingError(f"{folder}: {len(methods)} methods, and {len(COLOURS)} can be told apart; leave --figures out")
    if not any(_sets(scores)):
        raise SettingError(f"{folder}: none of its figures is a share, so it has no figure; leave --figures out")


def _with_own_names(prints: Sequence[tuple[str, Print]]) -> list[Print]:
    """Those that share a name get the run's, and a number where that is the same too."""
    names = [one.name for _, one in prints]
    own = [
        name if names.count(name) == 1 or not run else f"{name}-{_slug(run)}"
        for name, (run, _) in zip(names, prints, strict=True)
    ]
    return [replace(one, name=_numbered(own, at)) for at, (_, one) in enumerate(prints)]


def _numbered(names: Sequence[str], at: int) -> str:
    earlier = names[:at].count(names[at])
    return names[at] if not earlier else f"{names[at]}-{earlier + 1}"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.").lower()
