"""Printed figures along an axis: scores by K, N, alpha or lambda, and departures by the strength of a method."""

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
from mgap.reports.departure_tables import is_by_step
from mgap.reports.published_comparison import CAVEAT, backbone_of, printed_values
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
    base: tuple[str, Rate] | None  # the baseline, unless it is a point of the axis
    printed: dict[float, float]  # by x: the published figure, in percent


def symbol(axis: str) -> str:
    """The printed name of an axis."""
    return SYMBOLS.get(axis, axis)


def read_curve(scores: Scores, metric: str, group: str, beside: str | None = None) -> PrintedCurve:
    label_at = points_on_axis(scores)
    points = {x: (label, scores.results[label].groups[group].rates[metric]) for x, label in label_at.items()}
    published = printed_values(scores, beside)
    base = None
    if scores.baseline not in label_at.values():
        base = (scores.baseline, scores.results[scores.baseline].groups[group].rates[metric])
    printed = {x: published[label, group, metric] for x, label in label_at.items() if (label, group, metric) in published}
    return PrintedCurve(group, points, base, printed)


def print_sensitivity(
    name: str, runs: Sequence[tuple[str, Scores]], figures: Sequence[str], groups: Sequence[str], beside: str | None = None
) -> Print:
    """One column per run, one row per figure; a single run has all figures in one row. One line per group, such as a split."""
    look, rows, across = looks(groups), list[tuple[Value, ...]](), len(runs) if len(runs) > 1 else len(figures)
    down = len(figures) if len(runs) > 1 else 1
    with style():
        figure = new_figure(TEXT if across > 1 else COLUMN, 0.8 + 1.2 * down + 0.6 * (down == 1))
        panels = figure.subplots(down, across, squeeze=False, sharex="col", sharey="row" if len(runs) > 1 else False)
        for run_index, (run, scores) in enumerate(runs):
            axis = str(scores.run.plan["experiment"]["axis"])
            for index, metric in enumerate(figures):
                axes = panels[index][run_index] if len(runs) > 1 else panels[0][index]
                curves = [read_curve(scores, metric, group, beside) for group in groups]
                for curve in curves:
                    _draw_curve(axes, curve, look[curve.group])
                    rows += _curve_rows(run, axis, metric, curve)
                is_last = index == down - 1 or len(runs) == 1
                _label_axes(axes, symbol(axis) if is_last else "", [x for curve in curves for x in curve.points])
                title = column(metric, scores.figures[metric])
                if len(runs) == 1:
                    axes.set_title(title)
                if run_index == 0 and (len(runs) > 1 or index == 0):
                    axes.set_ylabel(f"{title} (%)" if len(runs) > 1 else "percent")
                if index == 0 and len({s.model for _, s in runs}) > 1:
                    axes.set_title(scores.model)
        handles = [Line2D([], [], **look[group].line_style, label=group) for group in groups]
        legend(figure, [*handles, *_shared_handles(rows)])
    axis_names = ", ".join(dict.fromkeys(symbol(str(s.run.plan["experiment"]["axis"])) for _, s in runs))
    models = ", ".join(dict.fromkeys(scores.model for _, scores in runs))
    caption = f"Scores along {axis_names} ({models}; {_sample_counts(runs)}). {BAND}{_published_note(rows, runs, beside)}"
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def print_departures(name: str, run: str, scores: Scores, beside: str | None = None) -> list[Print]:
    """The share of departed states, or of steps along answers, by strength: one line per method, in as many figures as needed
    to distinguish all methods.
    """
    lines = departure_lines(scores)
    if not lines:
        raise SettingError(f"{scores.run.folder}: no method was measured at two strengths, so nothing can be drawn along them")
    if len(scores.results) <= len(COLOURS):
        return [_departures(name, run, scores, lines, looks(scores.results), beside)]  # a method keeps its colour
    labels, prints = list(lines), list[Print]()
    for first in range(0, len(labels), len(COLOURS)):
        some = labels[first : first + len(COLOURS)]
        file = f"{name}-{len(prints) + 1}" if prints else name
        prints.append(_departures(file, run, scores, {label: lines[label] for label in some}, looks(some), beside))
    return prints


def _departures(
    name: str,
    run: str,
    scores: Scores,
    lines: Mapping[str, Mapping[float, Rate]],
    look: Mapping[str, Look],
    beside: str | None,
) -> Print:
    unit = "steps" if is_by_step(scores) else "states"
    published, rows = printed_values(scores, beside), list[tuple[Value, ...]]()
    with style():
        figure = new_figure(COLUMN, 2.75)
        axes = figure.subplots()
        for label, rates in lines.items():
            printed = {x: published[key] for x in rates if (key := (label, STATES, f"{x:.12g}")) in published}
            curve = PrintedCurve(label, {x: (label, rate) for x, rate in rates.items()}, None, printed)
            _draw_curve(axes, curve, look[label])
            rows += _curve_rows(run, "strength", "departed", curve)
        _label_axes(axes, "strength", [x for rates in lines.values() for x in rates])
        axes.set_ylim(-3, 103)
        axes.set_yticks(range(0, 101, 20))
        axes.set_ylabel(f"departed {unit} (%)")
        handles = [Line2D([], [], **look[label].line_style, label=label) for label in lines]
        legend(figure, [*handles, *_shared_handles(rows)])
    plan = scores.run.plan["departure"]
    caption = (
        f"{unit.capitalize()} farther than τ from those of plain decoding, by strength ({scores.model}; {scores.scored} "
        f"{'answers' if is_by_step(scores) else 'states'}, "
        f"k = {plan['k']}, τ = {plan['tau']:.4g}, the bank's {100 * (1 - plan['delta']):g}% quantile). {BAND}"
        f"{_published_note(rows, [(run, scores)], beside)}"
    )
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def _draw_curve(axes: Axes, curve: PrintedCurve, look: Look) -> None:
    xs = sorted(curve.points)
    rates = [curve.points[x][1] for x in xs]
    axes.fill_between(
        xs, [100 * rate.low for rate in rates], [100 * rate.high for rate in rates],
        color=look.colour, alpha=0.15, linewidth=0,
    )  # fmt: skip
    axes.plot(xs, [100 * rate.value for rate in rates], **look.line_style)
    if curve.base is not None:
        axes.axhline(100 * curve.base[1].value, color=look.colour, linewidth=0.6, linestyle=(0, (1, 2)))
    axes.plot(
        list(curve.printed), list(curve.printed.values()),
        color=look.colour, marker=look.mark, markerfacecolor="white", markeredgewidth=0.7, linestyle="none",
    )  # fmt: skip


def _label_axes(axes: Axes, name: str, ticks: Sequence[float]) -> None:
    if tick_labels_fit(ticks):
        axes.set_xticks(sorted(set(ticks)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel(name)
    grid(axes)


def _curve_rows(run: str, axis: str, metric: str, curve: PrintedCurve) -> Iterator[tuple[Value, ...]]:
    for x, (label, rate) in sorted(curve.points.items()):
        values = (100 * rate.value, 100 * rate.low, 100 * rate.high, curve.printed.get(x))
        yield (run, label, axis, x, curve.group, metric, *values)
    if curve.base is not None:  # drawn as a line without a band
        label, rate = curve.base
        yield (run, label, axis, None, curve.group, metric, 100 * rate.value, None, None, None)


def _shared_handles(rows: Sequence[Sequence[Value]]) -> Iterator[Artist]:
    """Legend entries that are the same for all series, in grey."""
    if names := [str(row[1]) for row in rows if row[3] is None]:
        label = ", ".join(dict.fromkeys(names))
        yield Line2D([], [], color=GREY, linewidth=0.6, linestyle=(0, (1, 2)), label=label)
    yield Patch(color=FAINT, label="95% interval")
    if any(row[-1] is not None for row in rows):
        yield Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="none", label="published")


def _sample_counts(runs: Sequence[tuple[str, Scores]]) -> str:
    return " and ".join(f"{count}" for count in sorted({scores.scored for _, scores in runs})) + " samples"


def _published_note(rows: Sequence[Sequence[Value]], runs: Sequence[tuple[str, Scores]], beside: str | None) -> str:
    if all(row[-1] is None for row in rows):
        return ""
    backbones = [backbone_of(scores, beside) for _, scores in runs]
    names = ", ".join(dict.fromkeys(backbone.name for backbone in backbones if backbone is not None))
    return f" Hollow marks: published, {names}; {CAVEAT}."
