"""A printed figure of precision against recall as a strength grows: one path per split, over curves of equal F1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from mgap.pages.point_labels import label_points
from mgap.pages.print_figures import COLUMN, FAINT, GREY, Print, Value, freeze_layout, legend, looks, new_figure, style
from mgap.reports.printed.curves import symbol
from mgap.reports.report_plots import points_on_axis
from mgap.reports.scores import Scores

STRENGTHS = ("alpha", "lambda")  # axes along which a method acts ever more strongly
NEEDED = ("accuracy", "precision", "recall")  # of yes/no questions
COLUMNS = (
    "run",
    "method",
    "axis",
    "x",
    "group",
    "recall",
    "recall_low",
    "recall_high",
    "precision",
    "precision_low",
    "precision_high",
)

Path = list[tuple[float, float]]  # recall and precision, percent


def print_tradeoff(name: str, run: str, scores: Scores, groups: Sequence[str]) -> Print:
    """Needs a run along an axis, and groups with precision and recall."""
    axis, label_at, look = str(scores.run.plan["experiment"]["axis"]), points_on_axis(scores), looks(groups)
    rows, paths = list[tuple[Value, ...]](), dict[str, Path]()
    with style():
        figure = new_figure(COLUMN, 3.2)
        axes = figure.subplots()
        for group in groups:
            rates = [scores.results[label].groups[group].rates for label in label_at.values()]
            paths[group] = [(100 * rate["recall"].value, 100 * rate["precision"].value) for rate in rates]
            for (x, label), rate, (recall, precision) in zip(label_at.items(), rates, paths[group], strict=True):
                left, right = 100 * rate["recall"].low, 100 * rate["recall"].high
                low, high = 100 * rate["precision"].low, 100 * rate["precision"].high
                rows.append((run, label, axis, x, group, recall, left, right, precision, low, high))
                axes.plot([left, right], [precision, precision], color=look[group].colour, alpha=0.25, linewidth=0.6)
                axes.plot([recall, recall], [low, high], color=look[group].colour, alpha=0.25, linewidth=0.6)
            axes.plot(*zip(*paths[group], strict=True), color=look[group].colour, marker=look[group].mark, linewidth=1)
        axes.margins(0.08)
        _equal_f1(axes)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("recall (%)")
        axes.set_ylabel("precision (%)")
        handles = [
            Line2D([], [], color=look[group].colour, marker=look[group].mark, label=group) for group in groups
        ]  # paths are solid lines: a dash would read as a gap
        handles += [
            Line2D([], [], color=GREY, linewidth=0.5, label="equal F1"),
            Line2D([], [], linestyle="none", label=f"numbers: {symbol(axis)}"),
        ]
        legend(figure, handles)
        freeze_layout(figure)
        _number_points(figure, axes, paths, [f"{x:g}" for x in label_at], {group: look[group].colour for group in groups})
    caption = (
        f"Precision against recall as {symbol(axis)} grows from {min(label_at):g} to {max(label_at):g}, which the numbers say "
        f"({scores.model}; {scores.scored} samples). Crosses: 95% intervals from a bootstrap over pictures. Grey: equal F1."
    )
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def _number_points(
    figure: Figure, axes: Axes, paths: Mapping[str, Path], texts: Sequence[str], colours: Mapping[str, str]
) -> None:
    occupied: list[Bbox] = []
    for group, path in paths.items():
        others = [point for name, points in paths.items() if name != group for point in points]
        occupied = label_points(figure, axes, path, texts, colour=colours[group], avoid=others, occupied=occupied)


def _equal_f1(axes: Axes) -> None:
    """Draw light curves within the panel's limits, each labelled with its F1 at its end."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    right, top = min(right, 100.5), min(top, 100.5)
    corner = [_f1(left, bottom), _f1(min(right, 100), min(top, 100))]
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if (corner[1] - corner[0]) / step <= 8)
    recall = np.linspace(max(left, 0.1), min(right, 100), 400)
    for level in np.arange(np.ceil(corner[0] / step), np.floor(corner[1] / step) + 1) * step:
        with np.errstate(divide="ignore", invalid="ignore"):
            precision = level * recall / (2 * recall - level)
        shown = (2 * recall > level) & (precision >= bottom) & (precision <= top)
        if shown.sum() < 20:
            continue
        axes.plot(recall[shown], precision[shown], color=FAINT, linewidth=0.6, zorder=0)
        is_cut = not shown[-1]  # by the lower edge: the label then goes above the curve, not to its right
        axes.annotate(
            f"{level:g}", (recall[shown][-1], precision[shown][-1]), (0, 3) if is_cut else (2, 0),
            textcoords="offset points", color=GREY, size=6.5, ha="center" if is_cut else "left",
            va="bottom" if is_cut else "center", annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def _f1(recall: float, precision: float) -> float:
    return 2 * recall * precision / (recall + precision)
