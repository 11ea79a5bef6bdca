"""Plots of rates with their intervals, as inline SVG that takes its colours from the page (light or dark)."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from mgap.errors import SettingError
from mgap.scoring.stats import Rate

MARKS = ("o", "s", "^", "D", "v", "P")  # shapes as well as colours tell series apart
SYMBOLS = ("\u25cf", "\u25a0", "\u25b2", "\u25c6", "\u25bc", "\u271a")  # the same shapes as text, for a legend
_INK, _GRID = "#010203", "#010204"  # stand-ins, replaced by the page's own colours
_SERIES = tuple(f"#0102{16 + n:02x}" for n in range(len(MARKS)))
_SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "mgap", "font.family": ["DejaVu Sans"], "font.size": 12,
    "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _GRID, "xtick.color": _INK, "ytick.color": _INK,
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """A drawn figure: `svg` goes into a page as it is, `text` says in words what it shows."""

    title: str
    text: str
    svg: Markup


def plot_rates(title: str, rates: Mapping[str, Mapping[str, Rate]], lowest: float | None = None) -> Plot:
    """Groups along the x axis, in each a mark with its interval for every series: `rates[group][series]`, in percent.

    The y axis runs from the ten below `lowest` (0..1; default: the lowest interval) to 100.
    """
    lowest = min(rate.low for group in rates.values() for rate in group.values()) if lowest is None else lowest
    series = list(dict.fromkeys(name for group in rates.values() for name in group))
    if len(series) > len(MARKS):
        raise SettingError(f"{len(series)} series in one plot: at most {len(MARKS)} can be told apart; plot fewer")
    with mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(4.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for number, name in enumerate(series):
            offset = (number - (len(series) - 1) / 2) * 0.22
            points = [(at + offset, group[name]) for at, group in enumerate(rates.values()) if name in group]
            axes.errorbar(
                [x for x, _ in points],
                [100 * rate.value for _, rate in points],
                yerr=[
                    [100 * max(0.0, rate.value - rate.low) for _, rate in points],
                    [100 * max(0.0, rate.high - rate.value) for _, rate in points],
                ],
                fmt=MARKS[number], color=_SERIES[number], markersize=8, elinewidth=2, capsize=4, capthick=2,
            )  # fmt: skip
        axes.set_xticks(range(len(rates)), list(rates))
        axes.set_xlim(-0.5, len(rates) - 0.5)
        axes.set_ylim(math.floor(10 * lowest) * 10 - 2, 102)
        axes.set_ylabel("percent")
        axes.grid(axis="y", color=_GRID, linewidth=1)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = "; ".join(f"{group}: {', '.join(f'{name} {rate}' for name, rate in of.items())}" for group, of in rates.items())
    return Plot(title, f"{title}, percent with 95% intervals. {text}.", _inline(drawn.getvalue(), title))


def _inline(svg: str, title: str) -> Markup:
    """Only the svg element; ids that are unique on the page; colours and font of the page."""
    svg = re.sub(r"<defs>\s*<style.*?</defs>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)  # would style the page
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"\bxmlns(:\w+)?=\"[^\"]*\"", "", svg).replace("xlink:href", "href")
    for number, colour in enumerate(_SERIES):
        svg = svg.replace(colour, f"var(--series-{number})")
    svg = svg.replace(_INK, "currentColor").replace(_GRID, "var(--line)").replace("'DejaVu Sans'", "system-ui, sans-serif")
    return Markup(svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1))
