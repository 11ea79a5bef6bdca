"""Printed figures along an axis: how scores follow K, N, alpha or lambda, and departures the strength of a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mgap.benchmarks.statistics import Rate
from mgap.errors import SettingError
from mgap.pages.plots import tick_labels_fit
from mgap.pages.print_figures import (
    COLOURS,
    COLUMN,
    FAINT,
    GREY,
    TEXT,
    Look,
    Print,
    Value,
    grid,
    legend,
    looks,
    new_figure,
    style,
)
from mgap.reports.departure_tables import is_along
from mgap.reports.published_comparison import OTHER, backbone_of, printed_values
from mgap.reports.report_plots import departure_lines, points_on_axis
from mgap.reports.score_tables import column
from mgap.reports.scores import STATES, Scores

SYMBOLS = {"alpha": "\N{GREEK SMALL LETTER ALPHA}", "lambda": "\N{GREEK SMALL LETTER LAMDA}"}
COLUMNS = ("run", "method", "axis", "x", "group", "figure", "percent", "low", "high", "published")
BAND = "Bands: 95% intervals from a bootstrap over pictures."


@dataclass(frozen=True)
class PrintedCurve:
    """One line of a panel."""

    group: str
    points: dict[float, tuple[str, Rate]]  # by x: the method's label, and its figure
    base: tuple[str, Rate] | None  # the baseline's, where it does not stand on the axis itself
    printed: dict[float, float]  # percent, as a paper has it


def symbol(axis: str) -> str:
    """An axis's name as it is printed."""
    return SYMBOLS.get(axis, axis)


def curve(scores: Scores, name: str, group: str, beside: str | None = None) -> PrintedCurve:
    at = points_on_axis(scores)
    points = {x: (label, scores.results[label].groups[group].rates[name]) for x, label in at.items()}
    known = printed_values(scores, beside)
    base = None
    if scores.baseline not in at.values():
        base = (scores.baseline, scores.results[scores.baseline].groups[group].rates[name])
    printed = {x: known[label, group, name] for x, label in at.items() if (label, group, name) in known}
    return PrintedCurve(group, points, base, printed)


def print_sensitivity(
    name: str, runs: Sequence[tuple[str, Scores]], figures: Sequence[str], groups: Sequence[str], beside: str | None = None
) -> Print:
    """Named runs side by side, a row a figure; one run has its figures side by side. A line a group, such as a split."""
    look, rows, panels = looks(groups), list[tuple[Value, ...]](), len(runs) if len(runs) > 1 else len(figures)
    deep = len(figures) if len(runs) > 1 else 1
    with style():
        figure = new_figure(TEXT if panels > 1 else COLUMN, 0.8 + 1.2 * deep + 0.6 * (deep == 1))
        grids = figure.subplots(deep, panels, squeeze=False, sharex="col", sharey="row" if len(runs) > 1 else False)
        for across, (run, scores) in enumerate(runs):
            axis = str(scores.run.plan["experiment"]["axis"])
            for down, wanted in enumerate(figures):
                axes = grids[down][across] if len(runs) > 1 else grids[0][down]
                curves = [curve(scores, wanted, group, beside) for group in groups]
                for one in curves:
                    _draw_curve(axes, one, look[one.group])
                    rows += _curve_rows(run, axis, wanted, one)
                is_last = down == deep - 1 or len(runs) == 1
                _label(axes, symbol(axis) if is_last else "", [x for one in curves for x in one.points])
                title = column(wanted, scores.figures[wanted])
                if len(runs) == 1:
                    axes.set_title(title)
                if across == 0 and (len(runs) > 1 or down == 0):
                    axes.set_ylabel(f"{title} (%)" if len(runs) > 1 else "percent")
                if down == 0 and len({s.model for _, s in runs}) > 1:
                    axes.set_title(scores.model)
        handles = [_key(group, look[group]) for group in groups]
        legend(figure, [*handles, *_keys(rows)])
    axes_said = ", ".join(dict.fromkeys(symbol(str(s.run.plan["experiment"]["axis"])) for _, s in runs))
    models = ", ".join(dict.fromkeys(scores.model for _, scores in runs))
    caption = f"Scores along {axes_said} ({models}; {_asked(runs)}). {BAND}{_published_said(rows, runs, beside)}"
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def print_departures(name: str, run: str, scores: Scores, beside: str | None = None) -> list[Print]:
    """The share of departed states, or of steps along answers, by strength, a line a method; more figures than one where
    there are more methods than can be told apart.
    """
    lines = departure_lines(scores)
    if not lines:
        raise SettingError(f"{scores.run.folder}: no method was measured at two strengths, so nothing can be drawn along them")
    if len(scores.results) <= len(COLOURS):
        return [_departures(name, run, scores, lines, looks(scores.results), beside)]  # a method keeps its colour
    labels, found = list(lines), list[Print]()
    for first in range(0, len(labels), len(COLOURS)):
        some = labels[first : first + len(COLOURS)]
        own = f"{name}-{len(found) + 1}" if found else name
        found.append(_departures(own, run, scores, {label: lines[label] for label in some}, looks(some), beside))
    return found


def _departures(
    name: str,
    run: str,
    scores: Scores,
    lines: Mapping[str, Mapping[float, Rate]],
    look: Mapping[str, Look],
    beside: str | None,
) -> Print:
    what = "steps" if is_along(scores) else "states"
    known, rows = printed_values(scores, beside), list[tuple[Value, ...]]()
    with style():
        figure = new_figure(COLUMN, 2.75)
        axes = figure.subplots()
        for label, rates in lines.items():
            printed = {x: known[key] for x in rates if (key := (label, STATES, f"{x:.12g}")) in known}
            one = PrintedCurve(label, {x: (label, rate) for x, rate in rates.items()}, None, printed)
            _draw_curve(axes, one, look[label])
            rows += _curve_rows(run, "strength", "departed", one)
        _label(axes, "strength", [x for rates in lines.values() for x in rates])
        axes.set_ylim(-3, 103)
        axes.set_yticks(range(0, 101, 20))
        axes.set_ylabel(f"departed {what} (%)")
        legend(figure, [*(_key(label, look[label]) for label in lines), *_keys(rows)])
    said = scores.run.plan["departure"]
    caption = (
        f"{what.capitalize()} farther than τ from those of plain decoding, by strength ({scores.model}; {scores.scored} "
        f"{'answers' if is_along(scores) else 'states'}, "
        f"k = {said['k']}, τ = {said['tau']:.4g}, the bank's {100 * (1 - said['delta']):g}% quantile). {BAND}"
        f"{_published_said(rows, [(run, scores)], beside)}"
    )
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def _draw_curve(axes: Axes, one: PrintedCurve, look: Look) -> None:
    places = sorted(one.points)
    rates = [one.points[x][1] for x in places]
    axes.fill_between(
        places, [100 * rate.low for rate in rates], [100 * rate.high for rate in rates],
        color=look.colour, alpha=0.15, linewidth=0,
    )  # fmt: skip
    axes.plot(places, [100 * rate.value for rate in rates], color=look.colour, marker=look.mark, linestyle=look.line)
    if one.base is not None:
        axes.axhline(100 * one.base[1].value, color=look.colour, linewidth=0.6, linestyle=(0, (1, 2)))
    axes.plot(
        list(one.printed), list(one.printed.values()),
        color=look.colour, marker=look.mark, markerfacecolor="white", markeredgewidth=0.7, linestyle="none",
    )  # fmt: skip


def _label(axes: Axes, name: str, places: Sequence[float]) -> None:
    if tick_labels_fit(places):
        axes.set_xticks(sorted(set(places)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel(name)
    grid(axes)


def _curve_rows(run: str, axis: str, figure: str, one: PrintedCurve) -> Iterator[tuple[Value, ...]]:
    for x, (label, rate) in sorted(one.points.items()):
        values = (100 * rate.value, 100 * rate.low, 100 * rate.high, one.printed.get(x))
        yield (run, label, axis, x, one.group, figure, *values)
    if one.base is not None:
        yield (
            run,
            one.base[0],
            axis,
            None,
            one.group,
            figure,
            100 * one.base[1].value,
            None,
            None,
            None,
        )  # a line without band


def _key(group: str, look: Look) -> Artist:
    return Line2D([], [], color=look.colour, marker=look.mark, linestyle=look.line, label=group)


def _keys(rows: Sequence[Sequence[Value]]) -> Iterator[Artist]:
    """What else is drawn, in grey: it is the same for all series."""
    if names := [str(row[1]) for row in rows if row[3] is None]:
        label = ", ".join(dict.fromkeys(names))
        yield Line2D([], [], color=GREY, linewidth=0.6, linestyle=(0, (1, 2)), label=label)
    yield Patch(color=FAINT, label="95% interval")
    if any(row[-1] is not None for row in rows):
        yield Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="none", label="published")


def _asked(runs: Sequence[tuple[str, Scores]]) -> str:
    return " and ".join(f"{count}" for count in sorted({scores.scored for _, scores in runs})) + " samples"


def _published_said(rows: Sequence[Sequence[Value]], runs: Sequence[tuple[str, Scores]], beside: str | None) -> str:
    if all(row[-1] is None for row in rows):
        return ""
    backbones = [backbone_of(scores, beside) for _, scores in runs]
    names = ", ".join(dict.fromkeys(one.name for one in backbones if one is not None))
    return f" Hollow marks: published, {names}; {OTHER}."
