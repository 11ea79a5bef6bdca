"""The points of bench/growth.py, and how their curves grow: flat, linear, or between.

A curve is fitted twice: y = a + b x by least squares over all points, and the exponent p of y ~ x^p over the last half, where
fixed costs weigh least. p decides the kind of the curve; a and b give its cost.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

FLAT, LINEAR = 0.1, 0.9  # exponents: flat up to 0.1, linear from 0.9 to 1.1


@dataclass(frozen=True)
class Point:
    """One way at one x of an axis."""

    axis: str
    model: str  # "" if there is none
    way: str
    x: float
    ms: float  # median
    low: float  # quartiles
    high: float
    ratio: float | None = None  # to vanilla, in the same round
    mib: float | None = None  # memory; None: not measured
    floor_ms: float | None = None  # bytes that must move over measured bandwidth


class Growth(NamedTuple):
    """How one curve grows."""

    kind: str
    a: float
    b: float  # y = a + b x
    exponent: float
    explained: float  # share (0..1) of the variance of y that a + b x explains

    def text(self) -> str:
        line = f"{self.a:.3g} {'-' if self.b < 0 else '+'} {abs(self.b):.3g} x"
        r2 = f" (R2 {self.explained:.3f})" if self.kind == "between" else ""  # near 1: a fixed part and a linear one
        return f"{self.kind}: {line}{r2}, exponent {self.exponent:.2f}"


def growth(xs: Sequence[float], ys: Sequence[float]) -> Growth | None:
    """How positive values grow over ascending, positive x; None for fewer than two points."""
    if len(xs) < 2:
        return None
    b, a = statistics.linear_regression(xs, ys)
    start = min(len(xs) // 2, len(xs) - 2)
    p = statistics.linear_regression([math.log(x) for x in xs[start:]], [math.log(y) for y in ys[start:]])[0]
    spread = statistics.pvariance(ys)
    residual = statistics.fmean((y - a - b * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Growth(kind(p), a, b, p, 1 - residual / spread if spread else 1.0)


def kind(exponent: float) -> str:
    if exponent < -FLAT:
        return "falling"
    if exponent <= FLAT:
        return "flat"
    if exponent < LINEAR:
        return "between"
    return "linear" if exponent <= 2 - LINEAR else "steeper"


def curves(points: Iterable[Point]) -> dict[tuple[str, str, str], list[Point]]:
    """Points by axis, model and way, each in ascending x."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.axis, point.model, point.way), []).append(point)
    return {key: sorted(group, key=lambda point: point.x) for key, group in groups.items()}


def write(path: str | os.PathLike[str], about: dict[str, Any], points: Sequence[Point]) -> None:
    content = {"about": about, "points": [asdict(point) for point in points]}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Point]]:
    """Read a file of `write`; anything else is an error."""
    try:
        content = json.loads(Path(path).read_text())
        about, rows = content["about"], content["points"]
        if any(set(row) != {f.name for f in fields(Point)} for row in rows):
            raise KeyError("fields")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path}: no measurements of growth ({error}); give a growth.json that --out wrote") from None
    return about, [Point(**row) for row in rows]
