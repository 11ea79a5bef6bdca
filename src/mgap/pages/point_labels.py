"""Short labels beside points, each where it covers least: other labels, points, and the ways between them."""

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
_REACHES = (7.0, 11.0, 16.0, 22.0, 30.0)  # points, from a label's middle to its point
_GROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
_LEAD = {"arrowstyle": "-", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}

Places = np.ndarray[Any, np.dtype[np.float64]]  # [n, 2], or one [2], in pixels


def label_points(
    figure: Figure,
    axes: Axes,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    colour: str,
    avoid: Sequence[tuple[float, float]] = (),
    taken: Sequence[Bbox] = (),
    size: float = 7,
) -> list[Bbox]:
    """Write each text near its point, with a thin line to it where it is not beside it; returns the room taken, in pixels.

    Call when all else is drawn and has its place (`look.settle`). `avoid`: further places to keep free; `taken`: room
    of earlier labels.
    """
    canvas = FigureCanvasAgg(figure)
    scale = figure.dpi / 72
    marks = axes.transData.transform(np.array([*points, *avoid], dtype=float).reshape(-1, 2))  # [n, 2] pixels
    ways = np.concatenate([_between(marks[i], marks[i + 1]) for i in range(len(points) - 1)] or [np.empty((0, 2))])
    room, boxes = axes.get_window_extent(), list(taken)
    for (x, y), text, at in _merged(points, texts, marks, 2.5 * scale):
        width, height = _measure(axes, text, size, canvas)
        best = min(
            ((reach, angle) for reach in _REACHES for angle in _ANGLES),
            key=lambda place: _cost(_box(at, place, width, height, scale), place[0], marks, ways, boxes, room, scale),
        )
        boxes.append(_box(at, best, width, height, scale))
        note = axes.annotate(
            text, (x, y), (_offset(best, width / scale), best[0] * math.sin(best[1])), textcoords="offset points",
            ha="center", va="center", color=colour, size=size, zorder=6, bbox=_GROUND,
            arrowprops={**_LEAD, "color": colour} if best[0] > _REACHES[0] else None,
        )  # fmt: skip
        note.set_in_layout(False)
    return boxes


def _measure(axes: Axes, text: str, size: float, canvas: FigureCanvasAgg) -> tuple[float, float]:
    """Width and height in pixels."""
    written = axes.text(0, 0, text, size=size)
    extent = written.get_window_extent(canvas.get_renderer())  # type: ignore[no-untyped-call]
    written.remove()
    return extent.width + 6, extent.height


def _merged(
    points: Sequence[tuple[float, float]], texts: Sequence[str], marks: Places, apart: float
) -> list[tuple[tuple[float, float], str, Places]]:
    """Points that lie on each other share a label."""
    found: list[tuple[tuple[float, float], list[str], Places]] = []
    for point, text, at in zip(points, texts, marks, strict=False):
        for _, said, other in found:
            if np.hypot(*(at - other)) < apart:
                said.append(text)
                break
        else:
            found.append((point, [text], at))
    return [(point, ", ".join(said), at) for point, said, at in found]


def _offset(place: tuple[float, float], width: float) -> float:
    """Sideways, in points: wide labels stand further off."""
    reach, angle = place
    return math.cos(angle) * (reach + max(0.0, width / 2 - 4))


def _box(at: Places, place: tuple[float, float], width: float, height: float, scale: float) -> Bbox:
    x, y = at[0] + _offset(place, width / scale) * scale, at[1] + place[0] * math.sin(place[1]) * scale
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def _between(start: Places, end: Places) -> Places:
    """Places along a line, a few pixels apart."""
    steps = max(2, int(np.hypot(*(end - start)) / 12))
    found: Places = start + np.linspace(0, 1, steps)[:, None] * (end - start)
    return found


def _cost(box: Bbox, reach: float, marks: Places, ways: Places, boxes: Sequence[Bbox], room: Bbox, scale: float) -> float:
    outside = box.x0 < room.x0 or box.x1 > room.x1 or box.y0 < room.y0 or box.y1 > room.y1
    over = sum(_overlap(box, other) for other in boxes) / float(box.width * box.height)
    return (
        100 * bool(outside) + 40 * over + 8 * _inside(box, marks, 3 * scale) + min(6, _inside(box, ways, scale)) + 0.12 * reach
    )


def _overlap(one: Bbox, other: Bbox) -> float:
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else float(shared.width * shared.height)


def _inside(box: Bbox, places: Places, margin: float) -> int:
    within = (places > [box.x0 - margin, box.y0 - margin]) & (places < [box.x1 + margin, box.y1 + margin])
    return int(within.all(-1).sum())
