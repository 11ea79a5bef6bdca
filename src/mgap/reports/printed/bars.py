"""A printed figure of methods side by side: bars by group with their intervals, distinguished by colour and hatch."""

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
from mgap.reports.published_comparison import CAVEAT, backbone_of, printed_values
from mgap.reports.score_tables import column
from mgap.reports.scores import Scores

COLUMNS = ("run", "method", "group", "figure", "percent", "low", "high", "published", "axis_from")
MAX_BARS_SIDE_BY_SIDE = 15  # that fit in a third of the text's width
CUT_ABOVE = 40  # percent: if all bars are higher, the axis is cut, and says so
_GROUP_WIDTH = 0.84  # out of 1


def print_bars(
    name: str, run: str, scores: Scores, figures: Sequence[str], groups: Sequence[str], beside: str | None = None
) -> Print:
    """One panel per figure; bars start at 0, or the axis is visibly cut."""
    methods = [label for label, result in scores.results.items() if result.groups and not result.arm.control]
    look, all_published, rows = looks(methods), printed_values(scores, beside), list[tuple[Value, ...]]()
    is_wide = len(methods) * len(groups) > MAX_BARS_SIDE_BY_SIDE
    with style():
        is_small = len(figures) == 1 and not is_wide
        figure = new_figure(COLUMN if is_small else TEXT, 0.6 + 1.5 * len(figures) if is_wide else 2.5)
        shape = (len(figures), 1) if is_wide else (1, len(figures))
        for axes, metric in zip(figure.subplots(*shape, squeeze=False).flat, figures, strict=True):
            rates = {(m, g): scores.results[m].groups[g].rates[metric] for m in methods for g in groups}
            published = {(m, g): all_published[m, g, metric] for m, g in rates if (m, g, metric) in all_published}
            start = _axis_start([*(100 * rate.low for rate in rates.values()), *published.values()])
            for at, group in enumerate(groups):
                for number, method in enumerate(methods):
                    x = at + ((number + 0.5) / len(methods) - 0.5) * _GROUP_WIDTH
                    rate, beside_bar = rates[method, group], published.get((method, group))
                    _bar(axes, x, _GROUP_WIDTH / len(methods), rate, beside_bar, look[method])
                    values = (100 * rate.value, 100 * rate.low, 100 * rate.high, beside_bar, start)
                    rows.append((run, method, group, metric, *values))
            _finish_axes(axes, start, groups, [*(100 * rate.high for rate in rates.values()), *published.values()])
            title = column(metric, scores.figures[metric])
            axes.set_title(title if not start else f"{title} (axis from {start:g})")
            axes.set_ylabel("percent")
        handles: list[Artist] = [Patch(label=method, **_fill(look[method])) for method in methods]
        if has_published := any(row[7] is not None for row in rows):
            handles.append(Line2D([], [], **_DIAMOND, label="published"))
        legend(figure, handles)
    caption = f"{scores.title} ({scores.model}; {scores.scored} samples). Lines: 95% intervals from a bootstrap over pictures."
    caption += f" {scores.remark}" if scores.remark else ""
    if any(row[8] for row in rows):
        caption += " Axes that do not start at 0 are cut, as the marks at their foot say: compare ends of bars, not lengths."
    if has_published and (backbone := backbone_of(scores, beside)) is not None:
        caption += f" Hollow diamonds: published, {backbone.name}; {CAVEAT}."
    return Print(name, caption, figure, COLUMNS, tuple(rows))


_DIAMOND: dict[str, Any] = {
    "color": BLACK, "marker": "D", "markersize": 3.5, "markerfacecolor": "white", "markeredgewidth": 0.7, "linestyle": "none"
}  # fmt: skip


def _bar(axes: Axes, x: float, width: float, rate: Rate, published: float | None, look: Look) -> None:
    axes.bar(x, 100 * rate.value, 0.88 * width, linewidth=0.6, **_fill(look))
    axes.plot([x, x], [100 * rate.low, 100 * rate.high], color=BLACK, linewidth=0.9, solid_capstyle="butt")
    if published is not None:
        axes.plot([x], [published], **_DIAMOND)


def _fill(look: Look) -> dict[str, Any]:
    """A light tint with edge and hatch in full colour, so that intervals and hatches show on it."""
    tint = tuple(0.72 + 0.28 * part for part in to_rgb(look.colour))
    return {"facecolor": tint, "edgecolor": look.colour, "hatch": look.hatch}


def _axis_start(lowest: Iterable[float]) -> float:
    """Where the axis starts: 0, or a multiple of ten below the lowest value."""
    low = min(lowest)
    return 0.0 if low < CUT_ABOVE else max(0.0, 10 * math.floor(low / 10 - 0.5))


def _finish_axes(axes: Axes, start: float, groups: Sequence[str], highest: Sequence[float]) -> None:
    axes.set_xticks(range(len(groups)), list(groups))
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    top = min(100.0, 10 * math.ceil(max(highest) / 10 + 0.05))
    axes.set_ylim(start, start + 1.02 * (top - start))  # keeps the upper edge of a bar at 100 visible
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    grid(axes)
    if start:  # two strokes across the foot of the axis, and a white line through all bars
        inches = axes.figure.dpi_scale_trans
        low, middle, high = (axes.transAxes + ScaledTranslation(0, points * (1 / 72), inches) for points in (4.0, 5.5, 7.0))
        axes.plot([0, 1], [0, 0], transform=middle, color="white", linewidth=1.6, zorder=3)
        for height in (low, high):
            axes.plot(
                [0], [0], transform=height, color=BLACK, marker=[(-1, -0.4), (1, 0.4)], markersize=5,
                markeredgewidth=0.7, clip_on=False, zorder=5,
            )  # fmt: skip
