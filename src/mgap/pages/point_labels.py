"""Short labels beside points, each placed where it covers the least of other labels, points, and the lines between points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

_ANGLES = tuple(math.radians(degrees) for degrees in (90, 45, 0, -45, -90, -135, 180, 135))
_RADII = (7.0, 11.0, 16.0, 22.0, 30.0)  # in points (1/72 in), from a label's centre to its point
_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
_LEADER_LINE = {"arrowstyle": "-", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}

Pixels = np.ndarray[Any, np.dtype[np.float64]]  # positions [n, 2], or one [2], in pixels
Polar = tuple[float, float]  # radius and angle of a label, from its point


def label_points(
    figure: Figure,
    axes: Axes,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    colour: str,
    avoid: Sequence[tuple[float, float]] = (),
    occupied: Sequence[Bbox] = (),
    size: float = 7,
) -> list[Bbox]:
    """Write each text near its point, with a thin leader line if it is not next to it; returns the occupied boxes in pixels.

    Call after everything else is drawn and laid out (`print_figures.freeze_layout`). `avoid`: more points to keep clear of;
    `occupied`: the boxes of earlier labels.
    """
    canvas = FigureCanvasAgg(figure)
    scale = figure.dpi / 72
    marks = axes.transData.transform(np.array([*points, *avoid], dtype=float).reshape(-1, 2))  # [n, 2] pixels
    lines = np.concatenate([_along_line(marks[i], marks[i + 1]) for i in range(len(points) - 1)] or [np.empty((0, 2))])
    panel, boxes = axes.get_window_extent(), list(occupied)
    for (x, y), text, point in _merge_coinciding(points, texts, marks, 2.5 * scale):
        width, height = _measure(axes, text, size, canvas)
        best = min(
            ((radius, angle) for radius in _RADII for angle in _ANGLES),
            key=lambda polar: _cost(_box(point, polar, width, height, scale), polar[0], marks, lines, boxes, panel, scale),
        )
        boxes.append(_box(point, best, width, height, scale))
        note = axes.annotate(
            text, (x, y), (_x_offset(best, width / scale), best[0] * math.sin(best[1])), textcoords="offset points",
            ha="center", va="center", color=colour, size=size, zorder=6, bbox=_BACKGROUND,
            arrowprops={**_LEADER_LINE, "color": colour} if best[0] > _RADII[0] else None,
        )  # fmt: skip
        note.set_in_layout(False)
    return boxes


def _measure(axes: Axes, text: str, size: float, canvas: FigureCanvasAgg) -> tuple[float, float]:
    """Width and height in pixels."""
    written = axes.text(0, 0, text, size=size)
    extent = written.get_window_extent(canvas.get_renderer())  # type: ignore[no-untyped-call]
    written.remove()
    return extent.width + 6, extent.height


def _merge_coinciding(
    points: Sequence[tuple[float, float]], texts: Sequence[str], marks: Pixels, tolerance: float
) -> list[tuple[tuple[float, float], str, Pixels]]:
    """(point, label, position) with one label for points that coincide."""
    merged: list[tuple[tuple[float, float], list[str], Pixels]] = []
    for point, text, position in zip(points, texts, marks, strict=False):
        for _, shared, other in merged:
            if np.hypot(*(position - other)) < tolerance:
                shared.append(text)
                break
        else:
            merged.append((point, [text], position))
    return [(point, ", ".join(shared), position) for point, shared, position in merged]


def _x_offset(polar: Polar, width: float) -> float:
    """Horizontal offset in points; wide labels are placed further away."""
    radius, angle = polar
    return math.cos(angle) * (radius + max(0.0, width / 2 - 4))


def _box(point: Pixels, polar: Polar, width: float, height: float, scale: float) -> Bbox:
    x, y = point[0] + _x_offset(polar, width / scale) * scale, point[1] + polar[0] * math.sin(polar[1]) * scale
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def _along_line(start: Pixels, end: Pixels) -> Pixels:
    """Positions along a line, a few pixels apart."""
    steps = max(2, int(np.hypot(*(end - start)) / 12))
    positions: Pixels = start + np.linspace(0, 1, steps)[:, None] * (end - start)
    return positions


def _cost(box: Bbox, radius: float, marks: Pixels, lines: Pixels, boxes: Sequence[Bbox], panel: Bbox, scale: float) -> float:
    outside = box.x0 < panel.x0 or box.x1 > panel.x1 or box.y0 < panel.y0 or box.y1 > panel.y1
    overlap = sum(_overlap(box, other) for other in boxes) / float(box.width * box.height)
    covered = 8 * _count_inside(box, marks, 3 * scale) + min(6, _count_inside(box, lines, scale))
    return 100 * bool(outside) + 40 * overlap + covered + 0.12 * radius


def _overlap(one: Bbox, other: Bbox) -> float:
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else float(shared.width * shared.height)


def _count_inside(box: Bbox, positions: Pixels, margin: float) -> int:
    within = (positions > [box.x0 - margin, box.y0 - margin]) & (positions < [box.x1 + margin, box.y1 + margin])
    return int(within.all(-1).sum())
