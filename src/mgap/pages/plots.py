"""Plots of rates with their intervals, as inline SVG in the colours of the page (light or dark)."""

from __future__ import annotations

import io
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mgap.benchmarks.statistics import Rate
from mgap.errors import SettingError

MARKS = ("o", "s", "^", "D", "v", "P")  # series differ in shape as well as colour
SYMBOLS = ("\u25cf", "\u25a0", "\u25b2", "\u25c6", "\u25bc", "\u271a")  # the same shapes as text, for a legend
INK, GRID = "#010203", "#010204"  # placeholders, replaced by the page's own colours
SERIES = tuple(f"#0102{16 + n:02x}" for n in range(len(MARKS)))
LIGHT = ("#5b6067", "#0067a5", "#bd4800", "#7a3e96", "#1a6e50", "#8a5a00")  # the series' colours on white, as in page.css
_RC_PARAMS = {
    "svg.fonttype": "none", "svg.hashsalt": "mgap", "font.family": ["DejaVu Sans"], "font.size": 12, "text.parse_math": False,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": GRID, "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip


_DRAWING_LOCK = threading.Lock()


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the style of pages. One thread at a time: matplotlib's settings are global to the process."""
    with _DRAWING_LOCK, mpl.rc_context(_RC_PARAMS):  # type: ignore[arg-type]
        yield


@dataclass(frozen=True)
class Plot:
    """A drawn figure: `svg` for the page, `text` as its description."""

    title: str
    text: str
    svg: Markup
    file: str = ""  # optional: the figure as a standalone SVG file, on white


def plot_rates(title: str, rates: Mapping[str, Mapping[str, Rate]], lowest: float | None = None) -> Plot:
    """Plot `rates[group][series]` in percent: groups along the x axis, a mark with its interval for each series.

    The y axis runs to 100 from the multiple of ten below `lowest` (0..1; default: the lowest interval).
    """
    lowest = min(rate.low for group in rates.values() for rate in group.values()) if lowest is None else lowest
    series = list(dict.fromkeys(name for group in rates.values() for name in group))
    _check_series(series)
    with drawing():
        figure = Figure(figsize=(4.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for number, name in enumerate(series):
            offset = (number - (len(series) - 1) / 2) * 0.22
            points = [(at + offset, group[name]) for at, group in enumerate(rates.values()) if name in group]
            axes.errorbar(
                [x for x, _ in points],
                [100 * rate.value for _, rate in points],
                yerr=_error_bars([rate for _, rate in points]),
                fmt=MARKS[number], color=SERIES[number], markersize=8, elinewidth=2, capsize=4, capthick=2,
            )  # fmt: skip
        axes.set_xticks(range(len(rates)), list(rates))
        axes.set_xlim(-0.5, len(rates) - 0.5)
        axes.set_ylim(math.floor(10 * lowest) * 10 - 2, 102)
        axes.set_ylabel("percent")
        tidy(axes, "y")
        svg = draw_svg(figure)
    return Plot(title, _describe(title, rates), inline(svg, title))


def plot_rows(
    title: str, rates: Mapping[str, Mapping[str, Rate]], key: str = "", to_beat: Mapping[str, float] | None = None
) -> Plot:
    """Plot `rates[row][series]` in percent: rows down the y axis, a mark with its interval for each series.

    For groups that do not fit side by side, such as methods. `key` distinguishes plots with the same title on one page.
    `to_beat` [series] draws a dashed line from top to bottom.
    """
    series = list(dict.fromkeys(name for row in rates.values() for name in row))
    _check_series(series)
    with drawing():
        figure = Figure(figsize=(4.2, 0.9 + len(rates) * (0.22 + 0.14 * len(series))), layout="constrained")
        axes = figure.add_subplot()
        for number, name in enumerate(series):
            offset = (number - (len(series) - 1) / 2) * 0.72 / max(1, len(series))
            points = [(at + offset, row[name]) for at, row in enumerate(rates.values()) if name in row]
            axes.errorbar(
                [100 * rate.value for _, rate in points],
                [y for y, _ in points],
                xerr=_error_bars([rate for _, rate in points]),
                fmt=MARKS[number], color=SERIES[number], markersize=6, elinewidth=1.5, capsize=2.5, capthick=1.5,
            )  # fmt: skip
            if to_beat and name in to_beat:
                axes.axvline(100 * to_beat[name], color=SERIES[number], linewidth=1.2, linestyle=(0, (4, 3)), zorder=0.5)
        axes.set_yticks(range(len(rates)), list(rates))
        axes.set_ylim(len(rates) - 0.5, -0.5)
        axes.set_xlim(*_limits(rate for row in rates.values() for rate in row.values()))
        axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 100 and axes.get_xlim()[0] <= tick])
        axes.set_xlabel("percent")
        for at in range(1, len(rates)):
            axes.axhline(at - 0.5, color=GRID, linewidth=1)
        tidy(axes, "x")
        svg = draw_svg(figure)
    lines = ", ".join(f"{name} {100 * value:.1f}" for name, value in (to_beat or {}).items())
    text = _describe(title, rates) + (f" Dashed, the line to beat: {lines}." if lines else "")
    return Plot(title, text, inline(svg, f"{title} {key}"))


def plot_lines(title: str, lines: Mapping[str, Mapping[float, Rate]], axis: str, key: str = "") -> Plot:
    """Plot `lines[series][x]` in percent: a line with intervals for each series, along a numeric axis called `axis`."""
    _check_series(list(lines))
    with drawing():
        figure = Figure(figsize=(4.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        ticks = sorted({x for points in lines.values() for x in points})
        step = 0.012 * (ticks[-1] - ticks[0])  # shifts the series so that intervals do not hide each other
        for number, points in enumerate(lines.values()):
            axes.errorbar(
                [x + (number - (len(lines) - 1) / 2) * step for x in points],
                [100 * rate.value for rate in points.values()],
                yerr=_error_bars(list(points.values())),
                fmt=f"{MARKS[number]}-", color=SERIES[number], markersize=7, linewidth=2,
                elinewidth=1.5, capsize=3, capthick=1.5,
            )  # fmt: skip
        if tick_labels_fit(ticks):
            axes.set_xticks(ticks)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(*_limits(rate for points in lines.values() for rate in points.values()))
        axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= 100 and axes.get_ylim()[0] <= tick])
        axes.set_xlabel(axis)
        axes.set_ylabel("percent")
        tidy(axes, "y")
        svg = draw_svg(figure)
    named = {name: {f"{axis} {x:g}": rate for x, rate in points.items()} for name, points in lines.items()}
    return Plot(title, _describe(title, named), inline(svg, f"{title} {key}"))


def tick_labels_fit(ticks: Sequence[float]) -> bool:
    """Whether there is room for a number at every tick."""
    ordered = sorted(set(ticks))
    gaps = [after - before for before, after in pairwise(ordered)]
    return all(gap >= 0.06 * (ordered[-1] - ordered[0]) for gap in gaps)


def _check_series(series: Sequence[str]) -> None:
    if len(series) > len(MARKS):
        raise SettingError(f"{len(series)} series in one plot: at most {len(MARKS)} can be told apart; plot fewer")


def _error_bars(rates: Sequence[Rate]) -> list[list[float]]:
    """Lengths of the intervals below and above the values, in percent."""
    below = [100 * max(0.0, rate.value - rate.low) for rate in rates]
    return [below, [100 * max(0.0, rate.high - rate.value) for rate in rates]]


def _limits(rates: Iterable[Rate]) -> tuple[float, float]:
    """Axis limits in percent: the intervals rounded out to multiples of ten, with room for marks."""
    low, high = zip(*((rate.low, rate.high) for rate in rates), strict=True)
    return math.floor(10 * min(low)) * 10 - 2, math.ceil(10 * max(high)) * 10 + 2


def tidy(axes: Axes, grid: Literal["x", "y"]) -> None:
    axes.grid(axis=grid, color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return file.getvalue()


def _describe(title: str, rates: Mapping[str, Mapping[str, Rate]]) -> str:
    text = "; ".join(f"{group}: {', '.join(f'{name} {rate}' for name, rate in of.items())}" for group, of in rates.items())
    return f"{title}, percent with 95% intervals. {text}."


def inline(svg: str, name: str) -> Markup:
    """The bare svg element, with ids prefixed by `name` and the colours and font of the page."""
    svg = re.sub(r"<defs>\s*<style.*?</defs>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)  # would style the page
    prefix = re.sub(r"\W+", "-", name.lower()).strip("-")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"\bxmlns(:\w+)?=\"[^\"]*\"", "", svg).replace("xlink:href", "href")
    for number, colour in enumerate(SERIES):
        svg = svg.replace(colour, f"var(--series-{number})")
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--line)").replace("'DejaVu Sans'", "system-ui, sans-serif")
    return Markup(svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1))


def standalone(svg: str) -> str:
    """The SVG as a file of its own, in the light theme's colours."""
    for number, colour in enumerate(SERIES):
        svg = svg.replace(colour, LIGHT[number])
    svg = svg.replace(INK, "#1c1d20").replace(GRID, "#d6d7d4")
    return svg.replace('<g id="figure_1">', '<rect width="100%" height="100%" fill="white"/>\n <g id="figure_1">', 1)
