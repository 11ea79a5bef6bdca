"""Print figures of bench/growth.py: decoding steps by model, and the parts; time above, memory below.

All axes are logarithmic: linear growth runs parallel to the faint line, and flat curves are flat. The dotted line without
markers is the floor: the bytes that must move over the measured bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from growth_points import Point, curves
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from mgap.pages.print_figures import FAINT, GREY, TEXT, Look, Print, Value, grid, legend, looks, new_figure, style

LABELS = {"batch": "batch", "length": "tokens of the answer", "k": "K", "vocabulary": "vocabulary",
          "n": "N, states fitted", "bank": "states in the bank"}  # fmt: skip
TIMES = {"batch": ("ms a step", 1.0), "length": ("ms a step", 1.0), "k": ("µs a step", 1000.0),
         "vocabulary": ("µs a step", 1000.0), "n": ("seconds", 0.001), "bank": ("seconds", 0.001)}  # fmt: skip
FIGURES = {
    "growth-decoding": (("batch", "length"), "A decoding step of models with random weights"),
    "growth-parts": (("k", "vocabulary", "n", "bank"), "MGAP's step, the fitting of a prior (N), and tau and d_k in a bank"),
}
TITLES = {"k": "MGAP's step", "vocabulary": "MGAP's step", "n": "fitting a prior", "bank": "distances"}
HIDDEN = ("first token",)  # only in the table: a hundred times a step
COLUMNS = ("axis", "model", "way", "x", "quantity", "value", "low", "high", "floor")
NAMES = {"mgap": "MGAP", "vcd": "VCD", "tau": "τ"}
LEAST = 8.0  # smallest ratio of an axis's ends, so that a flat curve looks flat

Panel = tuple[str, str]  # axis and model


def draw(points: Sequence[Point], about: str) -> list[Print]:
    """Up to two figures; an axis without measurements gets no panel."""
    return [figure for name in FIGURES if (figure := _figure(name, points, about)) is not None]


def _figure(name: str, points: Sequence[Point], about: str) -> Print | None:
    axes_of, title = FIGURES[name]
    shown = {key: curve for key, curve in curves(points).items() if key[0] in axes_of and key[2] not in HIDDEN}
    panels = sorted(dict.fromkeys((axis, model) for axis, model, _ in shown), key=lambda panel: axes_of.index(panel[0]))
    if not panels:
        return None
    look, rows = looks(way for _, _, way in shown), list[tuple[Value, ...]]()
    has_memory = any(point.mib for curve in shown.values() for point in curve)
    with style():
        figure = new_figure(TEXT, 0.75 + 1.45 * (1 + has_memory))
        grids = figure.subplots(1 + has_memory, len(panels), squeeze=False, sharex="col")
        for across, panel in enumerate(panels):
            mine = {way: curve for (axis, model, way), curve in shown.items() if (axis, model) == panel}
            rows += _times(grids[0][across], panel, mine, look)
            if has_memory:
                rows += _sizes(grids[1][across], panel, mine, look)
            grids[-1][across].set_xlabel(LABELS[panel[0]])
            grids[0][across].set_title(panel[1] or TITLES[panel[0]])
        keys = [Line2D([], [], color=one.colour, marker=one.mark, linestyle=one.line, label=NAMES.get(way, way))
                for way, one in look.items()]  # fmt: skip
        if any(row[-1] is not None for row in rows):
            keys.append(Line2D([], [], color=GREY, linewidth=0.8, linestyle=(0, (1, 1)), label="floor"))
        keys.append(Line2D([], [], color=FAINT, linewidth=2.5, label="linear"))
        legend(figure, keys)
    caption = f"{title}: time and memory; bars are quartiles. Faint: linear growth. {about}."
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def _times(axes: Axes, panel: Panel, ways: dict[str, list[Point]], look: dict[str, Look]) -> list[tuple[Value, ...]]:
    label, factor = TIMES[panel[0]]
    rows, drawn = list[tuple[Value, ...]](), list[list[tuple[float, float]]]()
    for way, curve in ways.items():
        xs, ys = [point.x for point in curve], [factor * point.ms for point in curve]
        ends = [[y - factor * point.low for y, point in zip(ys, curve, strict=True)],
                [factor * point.high - y for y, point in zip(ys, curve, strict=True)]]  # fmt: skip
        one = look[way]
        axes.errorbar(xs, ys, ends, color=one.colour, marker=one.mark, linestyle=one.line, elinewidth=0.6)
        floors = [(point.x, factor * point.floor_ms) for point in curve if point.floor_ms is not None]
        if floors and floors not in drawn:  # ways share theirs
            drawn.append(floors)
            axes.plot(*zip(*floors, strict=True), color=one.colour, linewidth=0.8, linestyle=(0, (1, 1)), alpha=0.6)
        for point, y in zip(curve, ys, strict=True):
            floor = None if point.floor_ms is None else factor * point.floor_ms
            rows.append((*panel, way, point.x, label, y, factor * point.low, factor * point.high, floor))
    _finish(axes, label, [point.x for curve in ways.values() for point in curve])
    return rows


def _sizes(axes: Axes, panel: Panel, ways: dict[str, list[Point]], look: dict[str, Look]) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for way, curve in ways.items():
        sizes = [(point.x, point.mib) for point in curve if point.mib]
        if sizes:
            one = look[way]
            axes.plot(*zip(*sizes, strict=True), color=one.colour, marker=one.mark, linestyle=one.line)
        rows += [(*panel, way, x, "MiB", mib, None, None, None) for x, mib in sizes]
    if rows:
        _finish(axes, "MiB", [float(str(row[3])) for row in rows])
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=GREY)
    return rows


def _finish(axes: Axes, label: str, places: Sequence[float]) -> None:
    """Set logarithmic scales with some room, and draw linear growth through the middle."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    more = max(1.0, LEAST / (high / low)) ** 0.5
    low, high = low / more, high * more
    middle = (low * high) ** 0.5 / (left * right) ** 0.5
    axes.plot([left, right], [middle * left, middle * right], color=FAINT, linewidth=2.5, zorder=0)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high / low < 100 else (1.0,), numticks=5))
    axes.xaxis.set_major_locator(FixedLocator(_apart(places)))
    for one in (axes.xaxis, axes.yaxis):
        one.set_minor_locator(NullLocator())
        one.set_minor_formatter(NullFormatter())
        one.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_ylabel(label)
    grid(axes)


def _apart(places: Sequence[float]) -> list[float]:
    """Ticks whose labels fit side by side, chosen from the last one down."""
    ordered, ticks = sorted(set(places), reverse=True), list[float]()
    span = math.log(ordered[0] / ordered[-1]) or 1.0
    for x in ordered:
        width = 0.03 + 0.03 * len(_short(x) + (_short(ticks[-1]) if ticks else ""))  # share of the panel
        if not ticks or math.log(ticks[-1] / x) >= width * span:
            ticks.append(x)
    return ticks


def _short(value: float) -> str:
    if value % 1024 == 0:
        return f"{value / 1024:g}k" if value > 1024 else "1024"
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if value >= size * 0.9999:
            return f"{value / size:g}{sign}"
    return f"{value:g}"
