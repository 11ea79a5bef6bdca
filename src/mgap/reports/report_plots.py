"""The plots of a report: methods down the page, or a line along the axis of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mgap.benchmarks.statistics import Rate
from mgap.diagnosis.departure_by_step import OWN, STEPS
from mgap.pages.plots import MARKS, Plot, plot_lines, plot_rows
from mgap.reports.departure_tables import is_by_step, step_plots
from mgap.reports.score_tables import column, run_names
from mgap.reports.scores import STATES, Scores

PLOTTED = (("CHAIRs", "CHAIRi", "recall"), ("chair", "hal", "cover"), ("f1", "precision", "recall"))


@dataclass(frozen=True)
class Plots:
    """Plots with the same series, which share a legend."""

    heading: str
    series: list[str]
    plots: list[Plot]
    has_line: bool = False  # whether a plot shows the line to beat


def draw(runs: Sequence[Scores]) -> list[Plots]:
    drawn: list[Plots] = []
    for name, scores in zip(run_names(runs), runs, strict=True):
        heading = name if len(runs) > 1 else ""
        if scores.run.plan.get("departure"):
            drawn += _step_departures(scores, heading) if is_by_step(scores) else _departures(scores, heading)
        else:
            for figures, groups in same_figures(scores).items():
                for several in _chunks(groups):
                    drawn.append(_plots(scores, heading, _choose_figures(scores, figures), several))
    return [plots for plots in drawn if plots.plots]


def _plots(scores: Scores, heading: str, figures: Sequence[str], groups: Sequence[str]) -> Plots:
    axis = (scores.run.plan.get("experiment") or {}).get("axis")
    drawn, has_line = [], False
    for name in figures:
        title, key = column(name, scores.figures[name]), f"{heading} {groups[0]}"
        lines = _lines(scores, name, groups) if axis else {}
        if any(len(points) > 1 for points in lines.values()):
            drawn.append(plot_lines(title, lines, str(axis), key))
        else:
            to_beat = _to_beat(scores, groups) if name == "f1" else {}
            has_line |= bool(to_beat)
            drawn.append(plot_rows(title, _rows(scores, name, groups), key, to_beat))
    return Plots(heading, list(groups), drawn, has_line)


def _rows(scores: Scores, name: str, groups: Sequence[str]) -> dict[str, dict[str, Rate]]:
    return {
        label: {group: result.groups[group].rates[name] for group in groups}
        for label, result in scores.results.items()
        if result.groups
    }


def _to_beat(scores: Scores, groups: Sequence[str]) -> dict[str, float]:
    """The F1 of the best control, by group."""
    return {g: scores.results[scores.line[g]].groups[g].rates["f1"].value for g in groups if g in scores.line}


def _lines(scores: Scores, name: str, groups: Sequence[str]) -> dict[str, dict[float, Rate]]:
    label_at = points_on_axis(scores)
    return {group: {x: scores.results[label].groups[group].rates[name] for x, label in label_at.items()} for group in groups}


def points_on_axis(scores: Scores) -> dict[float, str]:
    """Labels of methods by their x; of two with the same x, which would hide each other, the first."""
    label_at: dict[float, str] = {}
    for label, result in scores.results.items():
        if result.arm.x is not None and result.groups:
            label_at.setdefault(result.arm.x, label)
    return dict(sorted(label_at.items()))


def departure_lines(scores: Scores) -> dict[str, dict[float, Rate]]:
    """The share of departed states, or of steps of answers, by strength, for each method measured at several."""
    lines = {}
    for label, result in scores.results.items():
        part = result.groups.get(STEPS if is_by_step(scores) else STATES)
        rates = {} if part is None else {float(n): rate for n, rate in part.rates.items() if rate.of and n != OWN}
        if len(rates) > 1:
            lines[label] = rates
    return lines


def _departures(scores: Scores, heading: str) -> Iterator[Plots]:
    """The share of departed states by strength, one line per method."""
    lines = departure_lines(scores)
    for several in _chunks(list(lines)):
        chosen = {label: lines[label] for label in several}
        yield Plots(heading, several, [plot_lines("Departed states", chosen, "strength", f"{heading} {several[0]}")])


def _step_departures(scores: Scores, heading: str) -> Iterator[Plots]:
    """The share of departed steps along the answer."""
    for several in _chunks([label for label, result in scores.results.items() if result.groups]):
        yield Plots(heading, several, list(step_plots(scores, several, heading)))


def same_figures(scores: Scores) -> Mapping[tuple[str, ...], list[str]]:
    """Groups by the figures that they have."""
    groups_by_figures: dict[tuple[str, ...], list[str]] = {}
    for group, part in scores.results[scores.baseline].groups.items():
        groups_by_figures.setdefault(tuple(part.rates), []).append(group)
    return groups_by_figures


def _chunks(names: list[str]) -> list[list[str]]:
    """Split names into chunks that one plot can distinguish."""
    return [names[first : first + len(MARKS)] for first in range(0, len(names), len(MARKS))]


def _choose_figures(scores: Scores, figures: Sequence[str]) -> Sequence[str]:
    shares = [name for name in figures if scores.figures[name].percent]
    return next((names for names in PLOTTED if set(names) <= set(shares)), shares[:3])
