"""Food of the pocket world: fruit, vegetables, snacks and pastry."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, radians, sin

from mgap.pocket.drawing import Object, Pen, Point


def _mirror(points: Sequence[Point]) -> list[Point]:
    return [(1 - x, y) for x, y in points]


def _around(x: float, y: float, radius: float, degrees: float, squash: float = 1.0) -> Point:
    """The point on a circle at an angle, clockwise from three o'clock."""
    return x + radius * cos(radians(degrees)), y + radius * squash * sin(radians(degrees))


def _dot(pen: Pen, x: float, y: float, width: float, paint: str) -> None:
    """A spot without an outline."""
    pen.line([(x, y), (x, y)], paint, width)


def _banana(pen: Pen) -> None:
    """A crescent with a stalk; the sketch has two on one stalk, turned the other way."""
    belly = pen.pick(0.0, 0.03, -0.02, 0.0)
    fruit = [(0.74, 0.12), (0.86, 0.12), (0.95, 0.42), (0.84, 0.72), (0.6, 0.91), (0.32, 0.95), (0.07, 0.84)]
    fruit += [(0.07, 0.74), (0.3, 0.72 - belly), (0.54, 0.6 - belly), (0.68, 0.4 - belly)]
    ridge = [_around(0.27, 0.26, 0.57, degrees) for degrees in range(3, 100, 12)]
    stalk = [(0.73, 0.04), (0.86, 0.04), (0.87, 0.17), (0.74, 0.17)]
    if pen.style == "sketch":
        fruit, ridge, stalk = _mirror(fruit), _mirror(ridge), _mirror(stalk)
        pen.blob([(0.14, 0.12), (0.27, 0.12), (0.42, 0.34), (0.66, 0.47), (0.92, 0.5), (0.92, 0.6), (0.6, 0.68), (0.3, 0.55)])
        pen.polygon([(0.95, 0.49), (0.95, 0.61), (0.88, 0.62), (0.88, 0.49)], "ink")
    pen.blob(fruit)
    pen.line(ridge, "dark", 0.035)
    pen.polygon(stalk, "wood")
    tip = [(0.05, 0.74), (0.12, 0.73), (0.12, 0.87), (0.05, 0.84)]
    pen.polygon(_mirror(tip) if pen.style == "sketch" else tip, "ink")


def _apple(pen: Pen) -> None:
    """Two shoulders, a dip with a stalk and a leaf, two bumps below; the sketch has two leaves and a bite taken out."""
    waist = pen.pick(0.0, 0.03, -0.02, 0.02)
    right = [
        (0.5, 0.33),
        (0.64, 0.25),
        (0.83, 0.27),
        (0.95, 0.45),
        (0.92 - waist, 0.68),
        (0.79, 0.88),
        (0.64, 0.96),
        (0.5, 0.92),
    ]
    left = _mirror(right[::-1])[1:-1]
    if pen.style == "sketch":
        right[3:5] = [(0.88, 0.38), (0.74, 0.42), (0.7, 0.54), (0.77, 0.66), (0.9, 0.68)]
    pen.blob([*right, *left])
    lean = pen.pick(0.05, -0.05, 0.04, 0.0)
    pen.line([(0.5, 0.38), (0.49, 0.22), (0.5 + lean, 0.06)], "wood", 0.065)
    leaf = [(0.53, 0.22), (0.6, 0.09), (0.84, 0.04), (0.76, 0.19)]
    if pen.pick(True, False, True):
        pen.blob(leaf, "leaf")
    if pen.pick(False, True, False, True):
        pen.blob(_mirror(leaf), "leaf")
    pen.blob([(0.15, 0.5), (0.22, 0.38), (0.29, 0.36), (0.24, 0.48), (0.21, 0.6), (0.16, 0.6)], "light")


def _segments(pen: Pen, x: float, y: float, radius: float, count: int) -> None:
    """An orange cut across: peel, pith and wedges."""
    pen.circle(x, y, radius)
    _dot(pen, x, y, radius * 1.68, "cream")
    _dot(pen, x, y, radius * 1.42, "main")
    for k in range(count):
        pen.line([(x, y), _around(x, y, radius * 0.76, 360 * k / count + 15)], "cream", 0.036)
    _dot(pen, x, y, radius * 0.26, "cream")


def _orange(pen: Pen) -> None:
    """A whole fruit with its cut half before it; the sketch is one large cut face with a leaf."""
    if pen.style == "sketch":
        pen.blob([(0.6, 0.2), (0.66, 0.06), (0.94, 0.04), (0.86, 0.22), (0.74, 0.28)], "leaf")
        _segments(pen, 0.48, 0.54, 0.43, 8)
        return
    x, side = pen.pick((0.42, 0.67), (0.58, 0.33), (0.42, 0.67))
    pen.circle(x, 0.44, 0.39)
    for dx, dy in ((-0.22, -0.06), (-0.1, -0.18), (-0.26, 0.1), (0.08, -0.14), (-0.06, -0.02)):
        _dot(pen, x + (dx if x < 0.5 else -dx), 0.44 + dy, 0.035, "dark")
    tilt = 0.2 if x < 0.5 else -0.2
    pen.blob([(x, 0.13), (x + tilt * 0.5, 0.04), (x + tilt * 1.5, 0.06), (x + tilt, 0.15)], "leaf")
    _segments(pen, side, 0.67, 0.3, pen.pick(8, 7, 8))


def _broccoli(pen: Pen) -> None:
    """A thick forked stalk below a head of round florets."""
    wide = pen.pick(0.0, 0.03, -0.02, 0.02)
    stalk = [(0.2, 0.5), (0.33, 0.46), (0.44, 0.62), (0.47, 0.5), (0.56, 0.5), (0.58, 0.62), (0.7, 0.46), (0.82, 0.52)]
    stalk += [(0.66 + wide, 0.76), (0.65 + wide, 0.96), (0.36 - wide, 0.96), (0.36 - wide, 0.76)]
    pen.polygon(stalk, "light")
    heads = pen.pick(
        ((0.19, 0.42, 0.16), (0.81, 0.42, 0.16), (0.33, 0.22, 0.18), (0.67, 0.22, 0.18), (0.5, 0.38, 0.2)),
        ((0.19, 0.44, 0.16), (0.81, 0.44, 0.16), (0.26, 0.24, 0.15), (0.74, 0.24, 0.15), (0.5, 0.19, 0.16), (0.5, 0.4, 0.19)),
        ((0.18, 0.38, 0.15), (0.82, 0.4, 0.15), (0.35, 0.2, 0.17), (0.66, 0.21, 0.17), (0.36, 0.42, 0.15), (0.62, 0.44, 0.15)),
        ((0.5, 0.2, 0.17), (0.24, 0.28, 0.17), (0.76, 0.28, 0.17), (0.2, 0.48, 0.16), (0.8, 0.48, 0.16), (0.5, 0.44, 0.17)),
    )
    for x, y, radius in heads:
        pen.circle(x, y, radius)
    for x, y, radius in heads:
        for degrees in (60, 180, 300):
            _dot(pen, *_around(x, y, radius * 0.5, degrees + 200 * x), 0.045, "dark")


def _carrot(pen: Pen) -> None:
    """A long wedge pointing down to the left with a green tuft; the sketch hangs straight down."""
    if pen.style == "sketch":
        for x, y in ((0.22, 0.1), (0.78, 0.1), (0.5, 0.04)):
            pen.blob([(0.46, 0.36), (0.16 + x / 2, 0.18), (x, y), (0.34 + x / 2, 0.2), (0.54, 0.36)], "leaf")
        pen.blob([(0.5, 0.32), (0.66, 0.32), (0.74, 0.42), (0.67, 0.64), (0.5, 0.97), (0.33, 0.64), (0.26, 0.42), (0.34, 0.32)])
        marks = [(0.29, 0.48, 0.46, 0.5), (0.7, 0.58, 0.55, 0.6), (0.38, 0.7, 0.49, 0.71)]
    else:
        tufts = pen.pick(((0.6, 0.06), (0.8, 0.05), (0.95, 0.2), (0.94, 0.4)), ((0.62, 0.05), (0.92, 0.08), (0.95, 0.38)))
        for x, y in tufts:
            mx, my = (0.68 + x) / 2, (0.32 + y) / 2
            pen.blob([(0.62, 0.33), (mx - 0.06, my - 0.05), (x, y), (mx + 0.06, my + 0.05), (0.67, 0.38)], "leaf")
        plump = pen.pick(0.0, 0.03, -0.02)
        root = [(0.49 - plump, 0.28), (0.6, 0.25), (0.71, 0.29), (0.75, 0.4), (0.72, 0.51 + plump), (0.56, 0.69 + plump)]
        pen.blob([*root, (0.3, 0.86), (0.04, 0.96), (0.14, 0.7), (0.31 - plump, 0.44)])
        marks = [(0.39, 0.39, 0.49, 0.47), (0.68, 0.57, 0.58, 0.49), (0.25, 0.58, 0.35, 0.66), (0.45, 0.76, 0.38, 0.7)]
    for x0, y0, x1, y1 in marks:
        pen.line([(x0, y0), (x1, y1)], "dark", 0.04)


def _hot_dog(pen: Pen) -> None:
    """A sausage longer than its bun, with a wave of mustard; the sketch is seen from above at a slant."""
    if pen.style == "sketch":
        bun = [(0.1, 0.62), (0.55, 0.14), (0.76, 0.08), (0.84, 0.2), (0.92, 0.32), (0.84, 0.5), (0.4, 0.92), (0.16, 0.86)]
        pen.blob(bun, "crust")
        sausage = [(0.04, 0.88), (0.1, 0.72), (0.5, 0.3), (0.78, 0.06), (0.94, 0.05), (0.95, 0.2), (0.7, 0.5), (0.3, 0.88)]
        pen.blob([*sausage, (0.11, 0.96)])
        wave = [(0.14, 0.8), (0.3, 0.8), (0.3, 0.6), (0.5, 0.62), (0.5, 0.4), (0.7, 0.42), (0.7, 0.22), (0.86, 0.2)]
    else:
        rise, bumps = pen.pick((0.0, 4), (0.02, 5), (-0.02, 3))
        pen.box(0.13, 0.22 - rise, 0.87, 0.6, "crust", 0.15)
        pen.box(0.03, 0.29 - rise, 0.97, 0.72, "main", 0.2)
        wave = [(0.14 + 0.09 * k / bumps, 0.45 - rise + 0.065 * sin(radians(45 * k))) for k in range(8 * bumps + 1)]
        bun = [(0.12, 0.63), (0.3, 0.61), (0.5, 0.62), (0.7, 0.61), (0.88, 0.63), (0.86, 0.76), (0.72, 0.82), (0.28, 0.82)]
        pen.blob([*bun, (0.14, 0.76)], "crust")
    pen.line(wave, "dark", 0.1)
    pen.line(wave, "lamp", 0.06)


def _salami(pen: Pen, x: float, y: float, radius: float) -> None:
    pen.circle(x, y, radius, "dark")
    _dot(pen, x, y, radius * 1.5, "ember")


def _pizza(pen: Pen) -> None:
    """A slice, crust above, with salami and leaves; the sketch is a whole one, cut in six, with one slice drawn out."""
    if pen.style == "sketch":
        for x, y, start, end in ((0.47, 0.53, 0, 300), (0.53, 0.46, 300, 360)):
            for radius, paint in ((0.43, "crust"), (0.36, "main")):
                pen.pie(x - radius, y - radius, x + radius, y + radius, start, end, paint)
        for degrees in (60, 120, 180, 240):
            pen.line([(0.47, 0.53), _around(0.47, 0.53, 0.34, degrees)], "dark", 0.03)
        for degrees in (30, 90, 150, 210, 270):
            _salami(pen, *_around(0.47, 0.53, 0.23, degrees), 0.07)
        _salami(pen, *_around(0.53, 0.46, 0.23, 330), 0.07)
        return
    tip = pen.pick(0.5, 0.46, 0.54)
    pen.polygon([(0.08, 0.2), (0.92, 0.2), (tip + 0.02, 0.97), (tip - 0.02, 0.97)])
    pen.box(0.03, 0.06, 0.97, 0.25, "crust", 0.09)
    spots = pen.pick(
        ((0.3, 0.37, 0.09), (0.64, 0.4, 0.1), (0.47, 0.64, 0.09)),
        ((0.26, 0.37, 0.08), (0.52, 0.4, 0.09), (0.74, 0.36, 0.07), (0.46, 0.66, 0.08)),
        ((0.36, 0.4, 0.1), (0.68, 0.38, 0.09), (0.54, 0.66, 0.09)),
    )
    for spot in spots:
        _salami(pen, *spot)
    for x, y in pen.pick(((0.47, 0.46), (0.61, 0.58)), ((0.38, 0.52), (0.59, 0.56)), ((0.41, 0.56), (0.62, 0.53))):
        pen.line([(x - 0.03, y), (x + 0.03, y + 0.02)], "leaf", 0.06)


def _donut(pen: Pen) -> None:
    """A ring of dough under icing with sprinkles; the sketch has a bite out of it and stripes instead."""
    start, end = pen.pick((0, 360), (0, 360), (0, 360), (-5, 285))
    rim, hole = pen.pick((0.0, 0.15), (0.022, 0.13), (0.014, 0.17), (0.034, 0.14))
    for outer, inner, paint in ((0.46, hole - rim, "ink"), (0.46 - rim, hole, "crust"), (0.41, hole + 0.035, "main")):
        if paint != "ink" or rim:
            pen.arc(0.5 - outer, 0.5 - outer, 0.5 + outer, 0.5 + outer, start, end, paint, outer - inner)
        for degrees in (start, end) if pen.style == "sketch" and paint != "main" else ():
            for radius in (0.2, 0.283, 0.366):  # the bitten edge
                _dot(pen, *_around(0.5, 0.5, radius, degrees), 0.12 + 2 * rim * (paint == "ink"), paint)
    if pen.style == "sketch":
        for degrees in range(15, 275, 36):
            pen.line([_around(0.5, 0.5, 0.21, degrees), _around(0.5, 0.5, 0.37, degrees + 14)], "light", 0.045)
        return
    for k in range(24):
        _dot(pen, *_around(0.5, 0.5, 0.395 + 0.012 * (k % 2), 15 * k), 0.07, "main")
    for k, degrees in enumerate(range(0, 360, pen.pick(30, 36, 30))):
        x, y = _around(0.5, 0.5, 0.22 + hole / 2 + (0.07, -0.06)[k % 2], degrees)
        dx, dy = _around(0, 0, 0.028, degrees * 2 + 40)
        pen.line([(x - dx, y - dy), (x + dx, y + dy)], ("paper", "lamp", "ember", "leaf")[k % 4], 0.04)


def _candle(pen: Pen, x: float, y0: float, y1: float, paint: str) -> None:
    pen.box(x - 0.03, y0 + 0.1, x + 0.03, y1, paint)
    pen.blob([(x, y0), (x + 0.035, y0 + 0.07), (x, y0 + 0.1), (x - 0.035, y0 + 0.07)], "lamp")


def _icing(pen: Pen, x0: float, x1: float, y: float, drips: int) -> None:
    """A cover whose lower edge hangs down in drips."""
    edge = [(x1 - (x1 - x0) * k / (8 * drips), y + 0.12 - 0.05 * cos(radians(45 * k))) for k in range(8 * drips + 1)]
    pen.polygon([(x0, y + 0.02), (x0 + 0.04, y - 0.02), (x1 - 0.04, y - 0.02), (x1, y + 0.02), *edge], "light")


def _cake(pen: Pen) -> None:
    """A layered round cake with dripping icing and candles on a plate; the sketch has two tiers and one candle."""
    pen.ellipse(0.03, 0.85, 0.97, 0.97, "steel")
    if pen.style == "sketch":
        pen.box(0.12, 0.58, 0.88, 0.92, "main", 0.04)
        _icing(pen, 0.12, 0.88, 0.58, 5)
        _candle(pen, 0.5, 0.03, 0.36, "ember")
        pen.box(0.27, 0.34, 0.73, 0.58, "main", 0.04)
        _icing(pen, 0.27, 0.73, 0.34, 3)
        return
    for k in range(candles := pen.pick(3, 5, 4)):
        _candle(pen, 0.22 + 0.56 * k / (candles - 1), 0.06, 0.42, ("ember", "paper")[k % 2])
    pen.box(0.09, 0.4, 0.91, 0.92, "main", 0.05)
    pen.box(0.09, 0.69, 0.91, 0.75, pen.pick("cream", "ember", "cream"))
    _icing(pen, 0.09, 0.91, 0.4, pen.pick(5, 4, 6))


FOOD: dict[str, Object] = {
    "banana": Object(_banana, (("yellow", 95), ("green", 5)), size=0.32),
    "apple": Object(_apple, (("red", 72), ("green", 22), ("yellow", 6)), size=0.26),
    "orange": Object(_orange, (("orange", 97), ("red", 3)), size=0.28),
    "broccoli": Object(_broccoli, (("green", 97), ("purple", 3)), size=0.32),
    "carrot": Object(_carrot, (("orange", 95), ("purple", 3), ("yellow", 2)), size=0.32),
    "hot dog": Object(_hot_dog, (("red", 70), ("brown", 30)), size=0.34),
    "pizza": Object(_pizza, (("yellow", 80), ("orange", 12), ("red", 8)), size=0.36),
    "donut": Object(_donut, (("pink", 60), ("brown", 30), ("white", 10)), size=0.28),
    "cake": Object(_cake, (("brown", 60), ("white", 22), ("pink", 14), ("blue", 4)), size=0.36),
}
