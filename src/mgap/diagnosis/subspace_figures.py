"""Printed figures of prior subspaces: the share of variance along each direction, and the angles between subspaces.

Both are drawn from the JSON of an analysis: `spectrum` with `share` and `auto_rank`, and `comparisons`, each with `name`,
`labels`, `rank`, and a square matrix `largest` (degrees) or `shared` (mean cos^2, 0..1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mgap.errors import CorruptFile, SettingError
from mgap.pages.print_figures import COLUMN, GREY, TEXT, Print, Value, grid, legend, looks, new_figure, style

DIRECTIONS = 50  # the most that are drawn
COMPARED = {"largest": "largest principal angle (degrees)", "shared": "mean cos\N{SUPERSCRIPT TWO} of the principal angles"}
_TITLES = {"counts": "number of prompts N"}
_HIGHEST = {"largest": 90.0, "shared": 1.0}
_DIGITS = {"largest": 0, "shared": 2}


def print_subspaces(analysis: Mapping[str, Any]) -> list[Print]:
    """The spectrum and the comparisons in the JSON of one model's analysis."""
    try:
        spectrum, rank = analysis["spectrum"], int(analysis["rank"])
        prints = [print_spectrum({str(analysis["model"]): spectrum["share"]}, rank=rank, auto_rank=spectrum["auto_rank"])]
        comparisons = [one for one in analysis["comparisons"] if len(one["labels"]) > 1]
        return prints + ([print_angles(comparisons)] if comparisons else [])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"not an analysis of a subspace ({error!r}); analyse the subspace again") from error


def print_spectrum(
    shares: Mapping[str, Sequence[float]], *, rank: int | None = None, auto_rank: int | None = None, name: str = "spectrum"
) -> Print:
    """Each direction's share (0..1) of the blind states' variance, and the cumulative share; one line per model.

    `rank` is the K of the subspace, `auto_rank` the number of directions above noise; both are marked.
    """
    if not shares or not all(len(values) for values in shares.values()):
        raise SettingError("a spectrum needs the share of at least one direction: give some")
    look, rows = looks(shares), list[tuple[Value, ...]]()
    with style():
        figure = new_figure(COLUMN, 2.1)
        single, cumulative = figure.subplots(1, 2)
        for model, values in shares.items():
            total = np.cumsum(values)
            shown = range(1, min(len(values), DIRECTIONS) + 1)
            rows += [(model, n, 100 * float(values[n - 1]), 100 * float(total[n - 1])) for n in shown]
            single.plot(shown, [100 * float(values[n - 1]) for n in shown], **look[model].line_style, markersize=2.5)
            cumulative.plot(shown, [100 * float(total[n - 1]) for n in shown], **look[model].line_style, markersize=2.5)
        single.set_yscale("log")
        single.yaxis.set_major_formatter("{x:g}")
        cumulative.set_ylim(0, 103)
        for axes, title in ((single, "share (%)"), (cumulative, "first k together (%)")):
            axes.set_title(title)
            axes.set_xlabel("direction k")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            grid(axes)
            for at, line in ((rank, "--"), (auto_rank, ":")):
                if at is not None:
                    axes.axvline(at, color=GREY, linewidth=0.8, linestyle=line, zorder=1)
        several = shares if len(shares) > 1 else ()
        handles = [Line2D([], [], **look[model].line_style, markersize=3, label=model) for model in several]
        if rank is not None:
            handles.append(Line2D([], [], color=GREY, linewidth=0.8, linestyle="--", label=f"K = {rank}"))
        if auto_rank is not None:
            handles.append(Line2D([], [], color=GREY, linewidth=0.8, linestyle=":", label=f"above noise: {auto_rank}"))
        if handles:
            legend(figure, handles)
    caption = f"Share of the variance of blind states along each principal direction ({', '.join(shares)})."
    return Print(name, caption, figure, ("model", "direction", "percent", "percent_of_first"), tuple(rows))


def print_angles(comparisons: Sequence[Mapping[str, Any]], *, of: str = "largest", name: str = "angles") -> Print:
    """One panel per comparison: every subspace against every other, darker if they are closer, with the number."""
    if of not in COMPARED:
        raise SettingError(f"of={of!r}: choose from {', '.join(COMPARED)}")
    if not comparisons:
        raise SettingError("no subspaces to compare: give at least one comparison of two")
    rows, widest = list[tuple[Value, ...]](), max(len(one["labels"]) for one in comparisons)
    with style():
        figure = new_figure(TEXT if len(comparisons) > 1 else COLUMN, 2.9 if len(comparisons) < 3 else 2.4)
        panels = figure.subplots(1, len(comparisons), squeeze=False)[0]
        for axes, one in zip(panels, comparisons, strict=True):
            labels, matrix = [str(label) for label in one["labels"]], np.asarray(one[of], dtype=float)
            if matrix.shape != (len(labels), len(labels)):
                raise SettingError(
                    f"{one['name']}: {len(labels)} labels and a matrix of {matrix.shape}: one row and column each"
                )
            drawn = _heat(axes, labels, matrix, of, 7 if widest < 6 else 6.5)
            axes.set_title(_TITLES.get(one["name"], str(one["name"]).replace("_", " ")))
            pairs = ((i, j) for i in range(len(labels)) for j in range(i + 1))
            rows += [(str(one["name"]), int(one["rank"]), labels[i], labels[j], float(matrix[i, j])) for i, j in pairs]
        figure.colorbar(drawn, ax=list(panels), shrink=0.75, pad=0.02).set_label(COMPARED[of])
    ranks = " and ".join(str(rank) for rank in dict.fromkeys(one["rank"] for one in comparisons))
    caption = f"Prior subspaces of rank {ranks} against each other: {COMPARED[of]}. Darker is closer."
    return Print(name, caption, figure, ("comparison", "rank", "one", "other", of), tuple(rows))


def _heat(axes: Axes, labels: Sequence[str], matrix: Any, of: str, size: float) -> Any:
    """The lower triangle of a symmetric matrix. Cividis also works in grey and for colour-blind readers."""
    colours = mpl.colormaps["cividis" if of == "largest" else "cividis_r"]
    drawn = axes.imshow(np.ma.masked_where(np.triu(np.ones_like(matrix), 1) > 0, matrix), colours, vmin=0, vmax=_HIGHEST[of])
    for i in range(len(labels)):
        for j in range(i + 1):
            red, green, blue, _ = colours(matrix[i, j] / _HIGHEST[of])
            is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            text = f"{matrix[i, j]:.{_DIGITS[of]}f}"
            axes.text(j, i, text, ha="center", va="center", size=size, color="white" if is_dark else "black")
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return drawn
