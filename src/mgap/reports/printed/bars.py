"""A printed figure of methods side by side: bars by group with their intervals, told apart by colour and hatch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from mgap.benchmarks.statistics import Rate
from mgap.pages.print_figures import BLACK, COLUMN, TEXT, Look, Print, Value, grid, legend, looks, new_figure, style
from mgap.reports.published_comparison import OTHER, backbone_of, printed_values
from mgap.reports.score_tables import column
from mgap.reports.scores import Scores

COLUMNS = ("run", "method", "group", "figure", "percent", "low", "high", "published", "axis_from")
SIDE_BY_SIDE = 15  # bars that have room in a third of the text's width
CUT = 40  # percent: bars that all reach further have their feet cut off, and the axis says so
_WIDTH = 0.84  # of a group, out of 1


def print_bars(
    name: str, run: str, scores: Scores, figures: Sequence[str], groups: Sequence[str], beside: str | None = None
) -> Print:
    """A panel a figure; bars start at 0, or visibly do not."""
    methods = [label for label, result in scores.results.items() if result.groups]
    look, known, rows = looks(methods), printed_values(scores, beside), list[tuple[Value, ...]]()
    is_wide = len(methods) * len(groups) > SIDE_BY_SIDE
    with style():
        is_small = len(figures) == 1 and not is_wide
        figure = new_figure(COLUMN if is_small else TEXT, 0.6 + 1.5 * len(figures) if is_wide else 2.5)
        shape = (len(figures), 1) if is_wide else (1, len(figures))
        for axes, wanted in zip(figure.subplots(*shape, squeeze=False).flat, figures, strict=True):
            rates = {(m, g): scores.results[m].groups[g].rates[wanted] for m in methods for g in groups}
            printed = {(m, g): known[m, g, wanted] for m, g in rates if (m, g, wanted) in known}
            foot = _foot([*(100 * rate.low for rate in rates.values()), *printed.values()])
            for at, group in enumerate(groups):
                for number, method in enumerate(methods):
                    middle = at + ((number + 0.5) / len(methods) - 0.5) * _WIDTH
                    rate, published = rates[method, group], printed.get((method, group))
                    _bar(axes, middle, _WIDTH / len(methods), rate, published, look[method])
                    values = (100 * rate.value, 100 * rate.low, 100 * rate.high, published, foot)
                    rows.append((run, method, group, wanted, *values))
            _finish(axes, foot, groups, [*(100 * rate.high for rate in rates.values()), *printed.values()])
            title = column(wanted, scores.figures[wanted])
            axes.set_title(title if not foot else f"{title} (axis from {foot:g})")
            axes.set_ylabel("percent")
        keys: list[Artist] = [Patch(label=method, **_fill(look[method])) for method in methods]
        if is_beside := any(row[7] is not None for row in rows):
            keys.append(Line2D([], [], **_HOLLOW, label="published"))
        legend(figure, keys)
    caption = f"{scores.title} ({scores.model}; {scores.scored} samples). Lines: 95% intervals from a bootstrap over pictures."
    if any(row[8] for row in rows):
        caption += " Axes that do not start at 0 are cut, as the marks at their foot say: compare ends of bars, not lengths."
    if is_beside and (backbone := backbone_of(scores, beside)) is not None:
        caption += f" Hollow diamonds: published, {backbone.name}; {OTHER}."
    return Print(name, caption, figure, COLUMNS, tuple(rows))


_HOLLOW: dict[str, Any] = {
    "color": BLACK, "marker": "D", "markersize": 3.5, "markerfacecolor": "white", "markeredgewidth": 0.7, "linestyle": "none"
}  # fmt: skip


def _bar(axes: Axes, middle: float, width: float, rate: Rate, published: float | None, look: Look) -> None:
    axes.bar(middle, 100 * rate.value, 0.88 * width, linewidth=0.6, **_fill(look))
    axes.plot([middle, middle], [100 * rate.low, 100 * rate.high], color=BLACK, linewidth=0.9, solid_capstyle="butt")
    if published is not None:
        axes.plot([middle], [published], **_HOLLOW)


def _fill(look: Look) -> dict[str, Any]:
    """A light tint with edge and hatch in full colour, so that intervals and hatches show on it."""
    tint = tuple(0.72 + 0.28 * part for part in to_rgb(look.colour))
    return {"facecolor": tint, "edgecolor": look.colour, "hatch": look.hatch}


def _foot(lowest: Iterable[float]) -> float:
    """Where the axis starts: 0, or a ten below what is lowest."""
    low = min(lowest)
    return 0.0 if low < CUT else max(0.0, 10 * math.floor(low / 10 - 0.5))


def _finish(axes: Axes, foot: float, groups: Sequence[str], highest: Sequence[float]) -> None:
    axes.set_xticks(range(len(groups)), list(groups))
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    top = min(100.0, 10 * math.ceil(max(highest) / 10 + 0.05))
    axes.set_ylim(foot, foot + 1.02 * (top - foot))  # the upper edge of a bar that reaches 100 shows
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    grid(axes)
    if foot:  # two strokes across the foot of the axis, and a white one through all bars
        ground, point = axes.transAxes, 1 / 72
        inches = axes.figure.dpi_scale_trans
        up = [ScaledTranslation(0, height * point, inches) for height in (4.0, 5.5, 7.0)]
        axes.plot([0, 1], [0, 0], transform=ground + up[1], color="white", linewidth=1.6, zorder=3)
        for lift in (up[0], up[2]):
            axes.plot(
                [0], [0], transform=ground + lift, color=BLACK, marker=[(-1, -0.4), (1, 0.4)], markersize=5,
                markeredgewidth=0.7, clip_on=False, zorder=5,
            )  # fmt: skip
