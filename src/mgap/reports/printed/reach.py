"""The printed figure of departures by the length of the shift, which compares methods where strengths cannot.

A strength of 1 moves a state by half its length under one method, and by a fiftieth under another. Here each point is a method
at one strength. x: the mean length of its shift, in percent of the state's length; y: the share of departed states.
"""

from __future__ import annotations

from matplotlib.lines import Line2D

from mgap.diagnosis.representation import Representation
from mgap.pages.print_figures import COLUMN, GREY, Print, Value, grid, legend, looks, new_figure, style
from mgap.reports.report_plots import departure_lines
from mgap.reports.scores import Scores

COLUMNS = ("run", "method", "strength", "moved_percent", "moved_low", "moved_high", "departed_percent", "low", "high")
MOVED = "moved_share"


def print_reach(run: str, scores: Scores, representation: Representation, name: str = "reach") -> Print | None:
    """One line per method; None if no method was measured at two strengths."""
    moved = {(line.method, line.strength): line.figures[MOVED] for line in representation.shifts if MOVED in line.figures}
    lines = {
        label: {x: (moved[label, x], rate) for x, rate in sorted(rates.items()) if (label, x) in moved and x > 0}
        for label, rates in departure_lines(scores).items()
    }
    lines = {label: points for label, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    look, rows = looks(scores.results), list[tuple[Value, ...]]()
    delta = 100 * scores.run.plan["departure"]["delta"]
    with style():
        figure = new_figure(COLUMN, 2.75)
        axes = figure.subplots()
        axes.axhline(delta, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        for label, points in lines.items():
            own, xs = look[label], [100 * step.value for step, _ in points.values()]
            shares = [rate for _, rate in points.values()]
            axes.fill_between(
                xs, [100 * rate.low for rate in shares], [100 * rate.high for rate in shares],
                color=own.colour, alpha=0.15, linewidth=0,
            )  # fmt: skip
            axes.plot(xs, [100 * rate.value for rate in shares], **own.line_style)
            for strength, (step, rate) in points.items():
                percents = (100 * number for r in (step, rate) for number in (r.value, r.low, r.high))
                rows.append((run, label, strength, *percents))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(-3, 103)
        axes.set_yticks(range(0, 101, 20))
        axes.set_xlabel("mean shift (% of the state's length)")
        axes.set_ylabel("departed states (%)")
        grid(axes)
        handles = [Line2D([], [], **look[label].line_style, label=label) for label in lines]
        handles.append(Line2D([], [], color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), label=f"{delta:g}%"))
        legend(figure, handles)
    caption = (
        f"Departed states by how far a method moves them ({scores.model}): a point is a strength, from "
        f"{min(x for points in lines.values() for x in points):g} to {max(x for points in lines.values() for x in points):g}. "
        f"{delta:g}% of plain states lie beyond \N{GREEK SMALL LETTER TAU} by its definition. Bands: 95% intervals from a "
        "bootstrap over pictures."
    )
    return Print(name, caption, figure, COLUMNS, tuple(rows))
