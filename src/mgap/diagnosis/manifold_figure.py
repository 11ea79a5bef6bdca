"""The printed figure of manifold departure (MGAP paper, figure 3): where a method moves a state as its strength grows.

Grey points are states of plain decoding. Blind prior, joint posterior and ground truth are marked; a method's path starts at
the joint posterior and is numbered by strength. The inset shows d_k along the path, in all dimensions, against tau. Each method
has its own panel, all on the same axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from mgap.errors import CorruptFile, SettingError
from mgap.pages.point_labels import label_points
from mgap.pages.print_figures import (
    BLACK,
    BLUE,
    COLUMN,
    GREEN,
    GREY,
    ORANGE,
    TEXT,
    VERMILLION,
    Print,
    Value,
    freeze_layout,
    legend,
    new_figure,
    style,
)

BLIND, JOINT, TRUTH = "blind prior", "joint posterior", "ground truth"
COLUMNS = ("kind", "method", "alpha", "x", "y", "d_k", "tau")
_MARKS = {BLIND: (ORANGE, "s"), JOINT: (BLUE, "o"), TRUTH: (GREEN, "^")}
_DISTANCE, _TAU, _ALPHA = "d\N{LATIN SUBSCRIPT SMALL LETTER K}", "\N{GREEK SMALL LETTER TAU}", "\N{GREEK SMALL LETTER ALPHA}"
_POINTS_HEIGHT = 0.64  # share of a panel's height for points; the inset takes the rest
_CLOSE_UP_BELOW = 0.5  # share of width and height below which marks and paths get a close-up

Box = tuple[tuple[float, float], tuple[float, float]]  # (left, right), (bottom, top)


class PathPoint(NamedTuple):
    """A state on a method's path."""

    alpha: float
    x: float
    y: float
    distance: float  # d_k, in all dimensions


@dataclass(frozen=True)
class ManifoldPicture:
    """The figure's data; x and y are along the first two principal directions of the bank."""

    bank: tuple[tuple[float, float], ...]  # the members drawn
    marks: dict[str, tuple[float, float]]  # by BLIND, JOINT, TRUTH; unknown ones are left out
    paths: dict[str, tuple[PathPoint, ...]]  # by method
    tau: float
    k: int
    shares: tuple[float, float]  # of the bank's variance, 0..1, along x and y
    states: int  # in the bank
    said: str  # for the caption: which sample this is, and the rule it was chosen by

    def __post_init__(self) -> None:
        if not self.bank or not self.paths or not all(self.paths.values()):
            raise SettingError("a picture of the manifold needs states of the bank and a path with points: give some of both")
        if unknown := [name for name in self.marks if name not in _MARKS]:
            raise SettingError(f"no mark is called {unknown[0]!r}: choose from {', '.join(_MARKS)}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ManifoldPicture:
        try:
            marks = {name: (float(x), float(y)) for name, (x, y) in data["marks"].items()}
            paths = {method: tuple(PathPoint(*map(float, point)) for point in path) for method, path in data["paths"].items()}
            bank = tuple((float(x), float(y)) for x, y in data["bank"])
            return cls(**{**data, "bank": bank, "marks": marks, "paths": paths, "shares": tuple(data["shares"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"not a picture of the manifold ({error!r}); run mgap diagnose again") from error

    def rows(self) -> Iterator[tuple[Value, ...]]:
        """The rows of the CSV."""
        for x, y in self.bank:
            yield "bank", None, None, x, y, None, None
        for name, (x, y) in self.marks.items():
            yield name, None, None, x, y, None, None
        for method, path in self.paths.items():
            for point in path:
                yield "path", method, *point, self.tau


def print_manifold(picture: ManifoldPicture, name: str = "manifold") -> Print:
    """Up to three methods side by side. If marks and paths fill only a small part of a panel, a close-up is drawn below it."""
    count, box = len(picture.paths), _close_up(picture)
    columns = count if count <= 3 else math.ceil(count / math.ceil(count / 3))
    rows, panels_each = math.ceil(count / columns), 1 if box is None else 2
    highest = max(point.distance for path in picture.paths.values() for point in path)
    with style():
        figure = new_figure(COLUMN if count == 1 else TEXT, 0.45 + rows * (2.75 if box is None else 4.1))
        panels = figure.subplots(rows * panels_each, columns, squeeze=False)
        for axes in panels[-panels_each:, count - columns * (rows - 1) :].flat:
            axes.set_visible(False)
        numbered = {}
        for index, (method, path) in enumerate(picture.paths.items()):
            row, column = divmod(index, columns)
            own_panels = panels[row * panels_each : (row + 1) * panels_each, column]
            _draw_states(own_panels[0], picture, path, _full_view(picture), is_small=box is not None)
            _inset(own_panels[0], path, picture.tau, highest)
            own_panels[0].set_title(method, loc="left")
            if box is not None:
                _draw_states(own_panels[1], picture, path, box)
                (left, right), (bottom, top) = box
                frame = Rectangle((left, bottom), right - left, top - bottom, fill=False, linewidth=0.6, zorder=5)
                own_panels[0].add_patch(frame)
                own_panels[1].spines[["top", "right"]].set_visible(True)
            own_panels[-1].set_xlabel(f"PC 1 ({100 * picture.shares[0]:.1f}%)")
            for axes in own_panels:
                axes.tick_params(labelleft=column == 0)
                if column == 0:
                    axes.set_ylabel(f"PC 2 ({100 * picture.shares[1]:.1f}%)")
            numbered[method] = own_panels[-1]
        legend(figure, list(_keys(picture)))
        freeze_layout(figure)
        for method, path in picture.paths.items():
            points, texts = [(point.x, point.y) for point in path], [f"{point.alpha:g}" for point in path]
            label_points(figure, numbered[method], points, texts, colour=VERMILLION, avoid=list(picture.marks.values()))
    caption = (
        f"Where each method leads the state that the first token is decoded from, as {_ALPHA} grows: {picture.said}. Grey: "
        f"{len(picture.bank)} of the {picture.states} states of normal decoding in the bank, along its first two principal "
        f"directions{'' if box is None else ', and below it the framed part close up'}. Inset: mean distance {_DISTANCE} to "
        f"the {picture.k} nearest of them, in all dimensions; dashed: {_TAU} = {picture.tau:.4g}; bars above it are shaded by "
        f"how far they are."
    )
    return Print(name, caption, figure, COLUMNS, tuple(picture.rows()))


def _draw_states(axes: Axes, picture: ManifoldPicture, path: tuple[PathPoint, ...], box: Box, is_small: bool = False) -> None:
    (left, right), (bottom, top) = box
    inside = [(x, y) for x, y in picture.bank if left <= x <= right and bottom <= y <= top]
    axes.plot([x for x, _ in inside], [y for _, y in inside], ".", color="#b3b3b3", markersize=2, markeredgewidth=0, zorder=1)
    axes.plot(
        [point.x for point in path], [point.y for point in path],
        color=BLACK, linewidth=0.6 if is_small else 0.9, marker="." if not is_small else "", markersize=4, zorder=3,
    )  # fmt: skip
    for name, (x, y) in picture.marks.items():
        colour, mark = _MARKS[name]
        size = 3.5 if is_small else 6.5
        axes.plot([x], [y], mark, color=colour, markersize=size, markeredgecolor="white", markeredgewidth=size / 10, zorder=2.5)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _bounding_box(points: Sequence[tuple[float, float]], margin: float) -> Box:
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    pad = margin * np.maximum(high - low, 1e-9)
    (left, bottom), (right, top) = (low - pad).tolist(), (high + pad).tolist()
    return (left, right), (bottom, top)


def _marks_and_paths(picture: ManifoldPicture) -> list[tuple[float, float]]:
    return [*picture.marks.values(), *((point.x, point.y) for path in picture.paths.values() for point in path)]


def _all_points(picture: ManifoldPicture) -> Box:
    return _bounding_box([*picture.bank, *_marks_and_paths(picture)], 0.06)


def _full_view(picture: ManifoldPicture) -> Box:
    """All points, with room above them for the inset."""
    (left, right), (bottom, top) = _all_points(picture)
    return (left, right), (bottom, bottom + (top - bottom) / _POINTS_HEIGHT)


def _close_up(picture: ManifoldPicture) -> Box | None:
    """The box of all marks and paths if it is a small part of the full view, else None."""
    full, close = _all_points(picture), _bounding_box(_marks_and_paths(picture), 0.18)
    shares = [(b - a) / (d - c) for (a, b), (c, d) in zip(close, full, strict=True)]
    return close if max(shares) < _CLOSE_UP_BELOW else None


def _inset(axes: Axes, path: tuple[PathPoint, ...], tau: float, highest: float) -> None:
    """Bars of d_k by alpha, on the same scale in all panels."""
    inset = axes.inset_axes((0.42, 0.74, 0.5, 0.25))
    top = 1.12 * max(highest, tau)
    for index, point in enumerate(path):
        beyond = max(0.0, point.distance - tau) / (top - tau)
        inset.bar(index, point.distance, 0.72, facecolor=_shade(beyond), edgecolor=BLACK, linewidth=0.5)
    inset.axhline(tau, color=BLACK, linewidth=0.8, linestyle=(0, (3, 1.5)))
    inset.annotate(
        _TAU, (1, tau), (2, 0), xycoords=inset.get_yaxis_transform(), textcoords="offset points", va="center", size=7.5
    )
    inset.set_ylim(0, top)
    inset.set_xticks(range(len(path)), [f"{point.alpha:g}".replace("0.", ".", 1) for point in path])
    inset.set_yticks([])
    inset.set_ylabel(_DISTANCE, size=7.5, labelpad=1)
    inset.tick_params(axis="x", labelsize=6.5, length=0, pad=1)
    inset.patch.set_alpha(0)


def _shade(beyond: float) -> tuple[float, ...]:
    """White up to tau, then darker with distance."""
    if beyond <= 0:
        return (1.0, 1.0, 1.0)
    return tuple(1 - (0.3 + 0.7 * min(1.0, beyond)) * (1 - part) for part in to_rgb(VERMILLION))


def _keys(picture: ManifoldPicture) -> Iterator[Line2D]:
    yield Line2D([], [], color=GREY, marker=".", linestyle="none", label="normal decoding")
    for name in picture.marks:
        colour, mark = _MARKS[name]
        yield Line2D([], [], color=colour, marker=mark, markersize=6, markeredgecolor="white", linestyle="none", label=name)
    yield Line2D([], [], color=BLACK, marker=".", linewidth=0.9, label=f"path along {_ALPHA}")
