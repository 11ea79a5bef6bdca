"""Plots of one token: its state among those of normal decoding, and probabilities as methods grow stronger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mgap.diagnosis.landscape import Landscape, Place
from mgap.pages.plots import GRID, INK, MARKS, SERIES, Plot, draw_svg, drawing, inline, standalone, tidy

_CLOSE_UP_SHARE = 0.3  # of width and height: a smaller extent gets a close-up
_TAU, _DISTANCE = "\N{GREEK SMALL LETTER TAU}", "d\N{LATIN SUBSCRIPT SMALL LETTER K}"


@dataclass(frozen=True)
class Spot:
    """A method's states at one token: the plain one, and the one decoded from."""

    series: int  # its colour and marker on the page
    before: Place
    after: Place


def plot_spots(land: Landscape, spots: Mapping[str, Spot], path: Sequence[Place] = ()) -> Plot:
    """The bank along its first two principal directions; below, the distance of states from it, against tau.

    `spots` by method; `path` has the other tokens of the answer.
    """
    with drawing():
        figure = Figure(figsize=(5.4, 5.2), layout="constrained")
        above, below = figure.subplots(2, 1, height_ratios=(3.4, 1))
        _cloud(above, land, spots, path)
        above.set_xlabel(f"PC 1 ({100 * land.shares[0]:.0f}% of the variance)")
        above.set_ylabel(f"PC 2 ({100 * land.shares[1]:.0f}%)")
        tidy(above, "y")
        if (box := _close_up(above, spots)) is not None:
            near = above.inset_axes((0.01, 0.62, 0.36, 0.37))
            _cloud(near, land, spots, path)
            near.set(xlim=box[0], ylim=box[1], xticks=[], yticks=[])
            near.patch.set_alpha(0)
            for spine in near.spines.values():
                spine.set_color(INK)
            above.indicate_inset_zoom(near, edgecolor=INK, alpha=0.6)
        _strip(below, land, spots)
        drawn = draw_svg(figure)
    distances = "; ".join(f"{name}: {_distance_in_words(spot.after)}" for name, spot in spots.items())
    title = "Where the state lies"
    text = f"{title}, among {land.states} states of normal decoding. {_TAU} is {land.manifold.tau:.3g}. {distances}."
    return Plot(title, text, inline(drawn, "spots"), standalone(drawn))


def _cloud(axes: Axes, land: Landscape, spots: Mapping[str, Spot], path: Sequence[Place]) -> None:
    axes.plot(*_columns(land.points), ".", color=GRID, markersize=4, markeredgewidth=0)
    axes.plot([p.x for p in path], [p.y for p in path], ".", color=SERIES[0], markersize=5, markeredgewidth=0)
    for spot in spots.values():
        colour = SERIES[spot.series]
        if (spot.before.x, spot.before.y) != (spot.after.x, spot.after.y):
            axes.annotate(
                "", (spot.after.x, spot.after.y), (spot.before.x, spot.before.y),
                arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 3},
            )  # fmt: skip
        axes.plot([spot.after.x], [spot.after.y], MARKS[spot.series], color=colour, markersize=10, zorder=4)


def _close_up(axes: Axes, spots: Mapping[str, Spot]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The axes limits around the methods' states, with a margin; None if they span much of the plot."""
    places = [place for spot in spots.values() for place in (spot.before, spot.after)]
    found, shares = [], []
    for values, limits in (([p.x for p in places], axes.get_xlim()), ([p.y for p in places], axes.get_ylim())):
        whole, reach = limits[1] - limits[0], max(values) - min(values)
        room = max(0.25 * reach, 0.02 * whole)
        found.append((min(values) - room, max(values) + room))
        shares.append((reach + 2 * room) / whole)
    return (found[0], found[1]) if max(shares) < _CLOSE_UP_SHARE else None


def _strip(axes: Axes, land: Landscape, spots: Mapping[str, Spot]) -> None:
    """d_k: a histogram of the bank's own states, tau, and the methods' markers."""
    tau = land.manifold.tau
    farthest = max([tau * 1.6, *(1.05 * spot.after.distance for spot in spots.values())])
    counts, _, _ = axes.hist([d for d in land.distances if d <= farthest], bins=40, range=(0, farthest), color=GRID)
    top = float(max(counts))
    axes.axvline(tau, color=INK, linewidth=1.5, linestyle=(0, (4, 2)))
    axes.annotate(f"{_TAU} = {tau:.3g}", (tau, top), (4, -2), textcoords="offset points", va="top", color=INK)
    for place, spot in enumerate(spots.values()):
        height = top * (0.22 + 0.24 * (place % 3))
        axes.plot([spot.after.distance], [height], MARKS[spot.series], color=SERIES[spot.series], markersize=10, zorder=4)
    axes.set_xlim(0, farthest)
    axes.set_ylim(0, 1.15 * top)
    axes.set_yticks([])
    axes.set_xlabel(f"{_DISTANCE}: mean distance to the {land.manifold.k} nearest; {_TAU}: the reach of normal decoding")
    tidy(axes, "x")


def _distance_in_words(place: Place) -> str:
    return f"{_DISTANCE} {place.distance:.3g}, {'beyond' if place.is_departed else 'within'} {_TAU}"


def plot_curves(
    curves: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    own: Mapping[str, float],
    series: Mapping[str, int],
) -> Plot:
    """One panel per word, one line per method: `curves[word][method]` has strengths and probabilities (0..1).

    `own` has each method's strength, which is marked; `series` its colour and marker on the page.
    """
    words = list(curves)
    columns = min(3, len(words))
    rows = -(-len(words) // columns)
    with drawing():
        figure = Figure(figsize=(1.2 + 2.9 * columns, 0.5 + 2.5 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=True)
        for axes in panels.flat[len(words) :]:
            axes.set_visible(False)
        for axes, word in zip(panels.flat, words, strict=False):
            for method, (strengths, probabilities) in curves[word].items():
                number = series[method]
                axes.plot(strengths, [100 * p for p in probabilities], color=SERIES[number], linewidth=2.2)
                nearest = min(range(len(strengths)), key=lambda place: abs(strengths[place] - own[method]))
                axes.plot(
                    [strengths[nearest]],
                    [100 * probabilities[nearest]],
                    MARKS[number],
                    color=SERIES[number],
                    markersize=9,
                    zorder=4,
                )
            axes.set_title(word, loc="left")
            axes.set_ylim(-4, 104)
            axes.set_yticks([0, 25, 50, 75, 100])
            tidy(axes, "y")
        for axes in panels[:, 0]:
            axes.set_ylabel("percent")
        for axes in panels[-1]:
            axes.set_xlabel("strength")
        drawn = draw_svg(figure)
    parts = (
        f"{word}: {', '.join(f'{name} {100 * p[0]:.0f} to {100 * p[-1]:.0f}' for name, (_, p) in of.items())}"
        for word, of in curves.items()
    )
    title = "As the strength grows"
    return Plot(
        title,
        f"Percent from the least to the greatest strength. {'; '.join(parts)}.",
        inline(drawn, "curves"),
        standalone(drawn),
    )


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
