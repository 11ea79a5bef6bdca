"""The two figures of docs/natural.md: hallucination and every method's gain along difficulty and along training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mgap.benchmarks.statistics import Rate
from mgap.pages.print_figures import GREY, TEXT, Look, Print, Value, grid, legend, looks, new_figure, style
from research.natural.conditions import AS_USUAL, SERIES, Conditions, Measured

PLAIN = "plain"
PANELS = {"f1": "adversarial F1", "chair_i": "CHAIRi", "usual_colour": "usual colours"}  # of odd things, the last
KNOBS = {"noise": 0.0, "blur": 0.0, "size": 1.0, "crowding": 0.0}  # the usual values
LABELS = {"noise": "noise", "blur": "blur", "size": "size of things", "crowding": "crowding", "step": "training steps"}
COLUMNS = ("condition", "method", "figure", "percent", "low", "high")
FEWEST = 3  # points that make a line
LINEAR = 5.0  # points of gain up to which a scale stays linear where some gains are four times as large
Points = Mapping[float, Mapping[str, Measured]]  # by the knob's value or the step


def draw_conditions(conditions: Conditions) -> list[Print]:
    """A figure along difficulty and one along training, each of the axes with enough points."""
    axes = {LABELS[knob]: points_of(conditions, knob) for knob in LABELS}
    lines = {label: points for label, points in axes.items() if len(points) >= FEWEST}
    steps = {label: lines.pop(label) for label in (LABELS["step"],) if label in lines}
    how = (
        "Above: plain decoding. Below: each method less plain decoding, in points; shaded is plain decoding's 95% interval. "
        "Higher is better for F1, lower for the others. No bias is chosen for captions and colours. "
        f"Where a gain exceeds {4 * LINEAR:g} points, the scale is logarithmic beyond {LINEAR:g}."
    )
    told = {
        "difficulty": (lines, "pocket/natural on pictures that are harder to read, at settings chosen on the usual pictures."),
        "training": (steps, "Checkpoints of one training run of pocket/natural, at settings chosen for the finished model."),
    }
    return [_draw(name, f"{what} {how}", columns) for name, (columns, what) in told.items() if columns]


def points_of(conditions: Conditions, knob: str) -> dict[float, dict[str, Measured]]:
    """What was measured along one knob, in order; the usual pictures are its usual value."""
    usual = {KNOBS[knob]: conditions.found[AS_USUAL]} if knob in KNOBS and AS_USUAL in conditions.found else {}
    named = {name.split()[1]: of for name, of in conditions.found.items() if name.startswith(f"{knob} ")}
    return dict(sorted({**usual, **{float(value): of for value, of in named.items()}}.items()))


def _draw(name: str, caption: str, columns: Mapping[str, Points]) -> Print:
    """One column of panels for each axis: plain decoding's figures, and below them a row of gains for each."""
    look, rows = looks(SERIES), list[tuple[Value, ...]]()
    with style():
        figure = new_figure(TEXT, 6.6)
        panels = figure.subplots(1 + len(PANELS), len(columns), squeeze=False, sharey="row", sharex="col")
        for column, (axis, points) in enumerate(columns.items()):
            _draw_plain(panels[0][column], points)
            for row, key in enumerate(PANELS, start=1):
                rows += _draw_gains(panels[row][column], points, key, look, axis)
            panels[-1][column].set_xlabel(axis)
            if axis == LABELS["size"]:  # to the right is harder
                panels[0][column].invert_xaxis()
            if axis == LABELS["step"]:
                panels[0][column].set_xscale("log")
                panels[-1][column].set_xticks(list(points), [f"{step:g}" for step in points], minor=False)
                panels[-1][column].set_xticks([], minor=True)
        panels[0][0].set_ylabel("plain decoding (%)")
        panels[0][0].legend(fontsize=6.5, handlelength=1.8)
        for row, label in enumerate(PANELS.values(), start=1):
            panels[row][0].set_ylabel(f"{label},\nless plain (points)")
        legend(figure, [Line2D([], [], **look[one].line_style, label=one) for one in SERIES if one != PLAIN])
    return Print(name, caption, figure, COLUMNS, tuple(rows))


def _rates(points: Points, method: str, key: str) -> dict[float, Rate]:
    rates: dict[float, Rate | None] = {x: getattr(of[method], key) for x, of in points.items()}
    return {x: rate for x, rate in rates.items() if rate is not None}


def _draw_plain(axes: Axes, points: Points) -> None:
    for (key, label), dashes in zip(PANELS.items(), ("-", "--", ":"), strict=True):
        rates = _rates(points, PLAIN, key)
        values = [100 * rate.value for rate in rates.values()]
        axes.plot(list(rates), values, color="black", linestyle=dashes, marker="o", markersize=2.5, label=label)
    axes.set_ylim(0, 108)
    grid(axes)


def _draw_gains(axes: Axes, points: Points, key: str, look: Mapping[str, Look], axis: str) -> list[tuple[Value, ...]]:
    plain, rows, largest = _rates(points, PLAIN, key), list[tuple[Value, ...]](), 0.0
    low, high = ([100 * (getattr(rate, end) - rate.value) for rate in plain.values()] for end in ("low", "high"))
    axes.fill_between(list(plain), low, high, color=GREY, alpha=0.18, linewidth=0)
    axes.axhline(0, color="black", linewidth=0.8)
    for label in SERIES:
        rates = _rates(points, label, key)
        rows += [(f"{axis} {x:g}", label, key, 100 * r.value, 100 * r.low, 100 * r.high) for x, r in rates.items()]
        if label != PLAIN:
            options: dict[str, Any] = {**look[label].line_style, "markersize": 3, "linewidth": 1.0}
            gains = [100 * (rate.value - plain[x].value) for x, rate in rates.items()]
            axes.plot(list(rates), gains, **options)
            largest = max([largest, *map(abs, gains)])
    if largest > 4 * LINEAR:
        ticks = [sign * LINEAR * 2**power for power in range(math.ceil(math.log2(largest / LINEAR))) for sign in (-1, 1)]
        axes.set_yscale("symlog", linthresh=LINEAR)
        axes.set_yticks([0.0, *ticks], [f"{tick:g}" for tick in (0.0, *ticks)])
        axes.set_yticks([], minor=True)
    grid(axes)
    return rows
