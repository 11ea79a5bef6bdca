"""The printed figure of manifold departure (MGAP paper, figure 3): where a method leads a state as its strength grows.

Grey: states of normal decoding. Blind prior, joint posterior and ground truth are marked, and the path that a method takes from
the joint posterior on is numbered by its strength. The inset has d_k along that path, in the space of all dimensions, against
tau. A method has a panel of its own, on the same axes as the others.
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
_ROOM = 0.64  # of a panel's height for points; insets have the rest
_LITTLE = 0.5  # of width and height: less is shown close up

Box = tuple[tuple[float, float], tuple[float, float]]  # left and right, bottom and top


class PathPoint(NamedTuple):
    """A state on a method's path."""

    alpha: float
    x: float
    y: float
    distance: float  # d_k, in all dimensions


@dataclass(frozen=True)
class ManifoldPicture:
    """What the figure shows; x and y lie along the first two principal directions of the bank."""

    bank: tuple[tuple[float, float], ...]  # those that are drawn
    marks: dict[str, tuple[float, float]]  # by BLIND, JOINT, TRUTH; what is not known is left out
    paths: dict[str, tuple[PathPoint, ...]]  # by method
    tau: float
    k: int
    shares: tuple[float, float]  # of the bank's variance, 0..1, along x and y
    states: int  # in the bank
    said: str  # which sample this is, and by which rule it was chosen

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
            paths = {method: tuple(PathPoint(*map(float, stop)) for stop in path) for method, path in data["paths"].items()}
            bank = tuple((float(x), float(y)) for x, y in data["bank"])
            return cls(**{**data, "bank": bank, "marks": marks, "paths": paths, "shares": tuple(data["shares"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"not a picture of the manifold ({error!r}); run mgap diagnose again") from error

    def rows(self) -> Iterator[tuple[Value, ...]]:
        """As the CSV has it."""
        for x, y in self.bank:
            yield "bank", None, None, x, y, None, None
        for name, (x, y) in self.marks.items():
            yield name, None, None, x, y, None, None
        for method, path in self.paths.items():
            for stop in path:
                yield "path", method, *stop, self.tau


def print_manifold(picture: ManifoldPicture, name: str = "manifold") -> Print:
    """Up to three methods side by side. Where marks and paths take up little of the whole, they are shown close up below it."""
    count, box = len(picture.paths), _close_up(picture)
    across = count if count <= 3 else math.ceil(count / math.ceil(count / 3))
    down, deep = math.ceil(count / across), 1 if box is None else 2
    highest = max(stop.distance for path in picture.paths.values() for stop in path)
    with style():
        figure = new_figure(COLUMN if count == 1 else TEXT, 0.45 + down * (2.75 if box is None else 4.1))
        panels = figure.subplots(down * deep, across, squeeze=False)
        for axes in panels[-deep:, count - across * (down - 1) :].flat:
            axes.set_visible(False)
        numbered = {}
        for place, (method, path) in enumerate(picture.paths.items()):
            row, column = divmod(place, across)
            column_of = panels[row * deep : (row + 1) * deep, column]
            _cloud(column_of[0], picture, path, _whole(picture), is_small=box is not None)
            _inset(column_of[0], path, picture.tau, highest)
            column_of[0].set_title(method, loc="left")
            if box is not None:
                _cloud(column_of[1], picture, path, box)
                (left, right), (bottom, top) = box
                frame = Rectangle((left, bottom), right - left, top - bottom, fill=False, linewidth=0.6, zorder=5)
                column_of[0].add_patch(frame)
                column_of[1].spines[["top", "right"]].set_visible(True)
            column_of[-1].set_xlabel(f"PC 1 ({100 * picture.shares[0]:.1f}%)")
            for axes in column_of:
                axes.tick_params(labelleft=column == 0)
                if column == 0:
                    axes.set_ylabel(f"PC 2 ({100 * picture.shares[1]:.1f}%)")
            numbered[method] = column_of[-1]
        legend(figure, list(_keys(picture)))
        freeze_layout(figure)
        for method, path in picture.paths.items():
            points, texts = [(stop.x, stop.y) for stop in path], [f"{stop.alpha:g}" for stop in path]
            label_points(figure, numbered[method], points, texts, colour=VERMILLION, avoid=list(picture.marks.values()))
    caption = (
        f"Where each method leads the state that the first token is decoded from, as {_ALPHA} grows: {picture.said}. Grey: "
        f"{len(picture.bank)} of the {picture.states} states of normal decoding in the bank, along its first two principal "
        f"directions{'' if box is None else ', and below it the framed part close up'}. Inset: mean distance {_DISTANCE} to "
        f"the {picture.k} nearest of them, in all dimensions; dashed: {_TAU} = {picture.tau:.4g}; bars above it are shaded by "
        f"how far they are."
    )
    return Print(name, caption, figure, COLUMNS, tuple(picture.rows()))


def _cloud(axes: Axes, picture: ManifoldPicture, path: tuple[PathPoint, ...], box: Box, is_small: bool = False) -> None:
    (left, right), (bottom, top) = box
    inside = [(x, y) for x, y in picture.bank if left <= x <= right and bottom <= y <= top]
    axes.plot([x for x, _ in inside], [y for _, y in inside], ".", color="#b3b3b3", markersize=2, markeredgewidth=0, zorder=1)
    axes.plot(
        [stop.x for stop in path], [stop.y for stop in path],
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


def _around(points: Sequence[tuple[float, float]], margin: float) -> Box:
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    reach = margin * np.maximum(high - low, 1e-9)
    (left, bottom), (right, top) = (low - reach).tolist(), (high + reach).tolist()
    return (left, right), (bottom, top)


def _of_interest(picture: ManifoldPicture) -> list[tuple[float, float]]:
    return [*picture.marks.values(), *((stop.x, stop.y) for path in picture.paths.values() for stop in path)]


def _whole(picture: ManifoldPicture) -> Box:
    """Everything that is drawn, and room above it for the inset."""
    (left, right), (bottom, top) = _around([*picture.bank, *_of_interest(picture)], 0.06)
    return (left, right), (bottom, bottom + (top - bottom) / _ROOM)


def _close_up(picture: ManifoldPicture) -> Box | None:
    """All marks and paths, where they take up little of the whole; else None."""
    whole, near = _around([*picture.bank, *_of_interest(picture)], 0.06), _around(_of_interest(picture), 0.18)
    shares = [(b - a) / (d - c) for (a, b), (c, d) in zip(near, whole, strict=True)]
    return near if max(shares) < _LITTLE else None


def _inset(axes: Axes, path: tuple[PathPoint, ...], tau: float, highest: float) -> None:
    """Bars of d_k by alpha, on the same scale in all panels."""
    inset = axes.inset_axes((0.42, 0.74, 0.5, 0.25))
    top = 1.12 * max(highest, tau)
    for place, stop in enumerate(path):
        beyond = max(0.0, stop.distance - tau) / (top - tau)
        inset.bar(place, stop.distance, 0.72, facecolor=_shade(beyond), edgecolor=BLACK, linewidth=0.5)
    inset.axhline(tau, color=BLACK, linewidth=0.8, linestyle=(0, (3, 1.5)))
    inset.annotate(
        _TAU, (1, tau), (2, 0), xycoords=inset.get_yaxis_transform(), textcoords="offset points", va="center", size=7.5
    )
    inset.set_ylim(0, top)
    inset.set_xticks(range(len(path)), [f"{stop.alpha:g}".replace("0.", ".", 1) for stop in path])
    inset.set_yticks([])
    inset.set_ylabel(_DISTANCE, size=7.5, labelpad=1)
    inset.tick_params(axis="x", labelsize=6.5, length=0, pad=1)
    inset.patch.set_alpha(0)


def _shade(beyond: float) -> tuple[float, ...]:
    """White up to tau, then darker the farther."""
    if beyond <= 0:
        return (1.0, 1.0, 1.0)
    return tuple(1 - (0.3 + 0.7 * min(1.0, beyond)) * (1 - part) for part in to_rgb(VERMILLION))


def _keys(picture: ManifoldPicture) -> Iterator[Line2D]:
    yield Line2D([], [], color=GREY, marker=".", linestyle="none", label="normal decoding")
    for name in picture.marks:
        colour, mark = _MARKS[name]
        yield Line2D([], [], color=colour, marker=mark, markersize=6, markeredgecolor="white", linestyle="none", label=name)
    yield Line2D([], [], color=BLACK, marker=".", linewidth=0.9, label=f"path along {_ALPHA}")
