"""The printed figures of runs: decide by the kind of run which ones to draw, and refuse a run that gives none."""

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
RUNS_PER_FIGURE = 4
CAPTIONS = "captions.md"

Named = tuple[str, Scores]


def draw_prints(runs: Sequence[Scores], beside: str | None = None) -> list[Print]:
    """Sweeps stand side by side in one figure; every other run has its own. Refuses a run that gives none.

    `beside` names the published backbone to show too; default: the one of the model's family.
    """
    named = list(zip(run_names(runs), runs, strict=True))
    for _, scores in named:
        _refuse_empty(scores)
    sweeps = [(name, scores) for name, scores in named if _is_sweep(scores)]
    drawn = [("", figure) for figure in _sensitivities(sweeps, beside)]  # these cover several runs, so they carry no run name
    for name, scores in named:
        if scores.run.plan.get("departure"):
            prints = [*print_departures("departures", name, scores, beside), *analysis_prints(name, scores)]
        else:
            prints = [*(_tradeoffs(name, scores) if _is_sweep(scores) else _bars(name, scores, beside))]
        drawn += [(name, figure) for figure in prints]
    return _with_unique_names(drawn)


def save_prints(prints: Sequence[Print], folder: str | os.PathLike[str]) -> list[Path]:
    """Write every figure in all formats, and the captions in one file."""
    paths = [path for figure in prints for path in figure.save(folder)]
    captions = [
        f"## {figure.name}\n\n{figure.caption}\n\n" + ", ".join(f"{figure.name}.{form}" for form in FORMATS)
        for figure in prints
    ]
    return [*paths, *write_files(folder, {CAPTIONS: "\n\n".join(captions) + "\n"})]


def _sensitivities(named: Sequence[Named], beside: str | None) -> Iterator[Print]:
    """Runs with the same figures and groups share a figure."""
    comparable: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Named]] = {}
    for name, scores in named:
        for figures, groups in _figure_sets(scores):
            comparable.setdefault((figures, groups), []).append((name, scores))
    for (figures, groups), runs in comparable.items():
        for first in range(0, len(runs), RUNS_PER_FIGURE):
            yield print_sensitivity("sensitivity", runs[first : first + RUNS_PER_FIGURE], figures, groups, beside)


def _tradeoffs(name: str, scores: Scores) -> Iterator[Print]:
    axis = scores.run.plan["experiment"]["axis"]
    for figures, groups in same_figures(scores).items():
        if axis in STRENGTHS and set(NEEDED) <= set(figures):
            yield print_tradeoff(f"precision-recall-{axis}", name, scores, groups)


def _bars(name: str, scores: Scores, beside: str | None) -> Iterator[Print]:
    sets = list(_figure_sets(scores))
    for figures, groups in sets:
        file = "bars" if len(sets) == 1 else f"bars-{_slug(groups[-1])}"  # a group that sums up the others comes last
        yield print_bars(file, name, scores, figures, groups, beside)


def _figure_sets(scores: Scores) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The figures to print, with the groups that have them; groups without shares are left out."""
    for figures, groups in same_figures(scores).items():
        shares = [figure for figure in figures if scores.figures[figure].percent]
        chosen = next((names for names in PRINTED if set(names) <= set(shares)), tuple(shares[:3]))
        if chosen:
            yield chosen, tuple(groups)


def _is_sweep(scores: Scores) -> bool:
    """Whether the run's experiment has an axis with at least two points."""
    return bool((scores.run.plan.get("experiment") or {}).get("axis")) and len(points_on_axis(scores)) > 1


def _refuse_empty(scores: Scores) -> None:
    """Refuse a run with nothing to compare, or with too many methods to distinguish."""
    folder = scores.run.folder
    if scores.run.plan.get("departure"):
        if not departure_lines(scores):
            raise SettingError(f"{folder}: no method was measured at two strengths, so it has no figure; leave --figures out")
        return
    methods = [label for label, result in scores.results.items() if result.groups and not result.arm.control]
    if not _is_sweep(scores) and len(methods) < 2:
        raise SettingError(f"{folder}: one method and no axis, so it has no figure to compare in; leave --figures out")
    if not _is_sweep(scores) and len(methods) > len(COLOURS):
        raise SettingError(f"{folder}: {len(methods)} methods, and {len(COLOURS)} can be told apart; leave --figures out")
    if not any(_figure_sets(scores)):
        raise SettingError(f"{folder}: none of its figures is a share, so it has no figure; leave --figures out")


def _with_unique_names(prints: Sequence[tuple[str, Print]]) -> list[Print]:
    """Append the run's name to names that occur twice, and a number if they still do."""
    names = [figure.name for _, figure in prints]
    with_run = [
        name if names.count(name) == 1 or not run else f"{name}-{_slug(run)}"
        for name, (run, _) in zip(names, prints, strict=True)
    ]
    return [replace(figure, name=_numbered(with_run, index)) for index, (_, figure) in enumerate(prints)]


def _numbered(names: Sequence[str], index: int) -> str:
    earlier = names[:index].count(names[index])
    return names[index] if not earlier else f"{names[index]}-{earlier + 1}"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.").lower()
