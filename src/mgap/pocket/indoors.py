"""Indoor objects of the pocket world: furniture, bathroom, screens and small household objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, pi, sin

from mgap.pocket.drawing import Object, Pen, Point


def _stroke(pen: Pen, points: Sequence[Point], paint: str, width: float) -> None:
    """A line with the outline of its style."""
    pen.line(points, "ink", width + 2 * pen.pick(0.0, 0.022, 0.014, 0.034))
    pen.line(points, paint, width)


def _boxes(pen: Pen, xs: Sequence[float], wide: float, y0: float, y1: float, paint: str = "main", radius: float = 0) -> None:
    for x in xs:
        pen.box(x, y0, x + wide, y1, paint, radius)


def _mirrored(side: Sequence[Point]) -> list[Point]:
    """The symmetric outline with this right side; x counts from the middle."""
    return [(0.5 + x, y) for x, y in side] + [(0.5 - x, y) for x, y in reversed(side)]


def _axis(x: float, y: float, degrees: float) -> Callable[[float, float], Point]:
    """A map from (distance along, distance across) to points, for slanted things; degrees run clockwise from three o'clock."""
    c, s = cos(degrees * pi / 180), sin(degrees * pi / 180)
    return lambda along, across: (x + c * along - s * across, y + s * along + c * across)


def _chair(pen: Pen) -> None:
    if pen.style == "sketch":  # seen from the front
        _boxes(pen, (0.24, 0.66), 0.1, 0.58, 0.88, "dark")
        _boxes(pen, (0.2, 0.43, 0.66), 0.14, 0.16, 0.58)
        pen.box(0.16, 0.04, 0.84, 0.26, radius=0.1)
        pen.polygon([(0.2, 0.54), (0.8, 0.54), (0.92, 0.67), (0.08, 0.67)], "light")
        pen.box(0.08, 0.66, 0.92, 0.77)
        _boxes(pen, (0.09, 0.77), 0.14, 0.75, 0.97)
        return
    _boxes(pen, (0.1, 0.54), 0.09, 0.5, 0.84, "dark")
    _boxes(pen, pen.pick((0.1, 0.54), (0.1, 0.245, 0.395, 0.54), (0.1, 0.54)), 0.1, 0.06, 0.58)
    for y in pen.pick((0.03,), (0.04,), (0.06, 0.27)):
        pen.box(0.1, y, 0.64, y + pen.pick(0.52, 0.14), radius=pen.pick(0.07, 0.0))
    pen.polygon([(0.1, 0.52), (0.64, 0.52), (0.93, 0.66), (0.36, 0.66)], "light")
    pen.polygon([(0.1, 0.52), (0.36, 0.66), (0.36, 0.74), (0.1, 0.6)], "dark")
    pen.box(0.36, 0.66, 0.93, 0.74)
    _boxes(pen, (0.36, 0.84), 0.09, 0.73, 0.97)


def _couch(pen: Pen) -> None:
    top, wide = pen.pick(0.2, 0.24, 0.2), pen.pick(0.33, 0.22, 0.33)
    lefts = pen.pick((0.16, 0.5), (0.16, 0.385, 0.61), (0.16, 0.5))
    _boxes(pen, (0.1, 0.82), 0.08, 0.8, 0.88, "wood")
    if pen.style == "sketch":  # one arched back
        pen.blob(_mirrored([(0.0, 0.18), (0.2, 0.22), (0.37, 0.28), (0.42, 0.5), (0.36, 0.7)]))
        pen.polygon([(0.25, 0.38), (0.42, 0.33), (0.46, 0.53), (0.29, 0.57)], "cream")
    else:
        pen.box(0.1, top, 0.9, 0.66, "dark", radius=0.08)
        _boxes(pen, lefts, wide, top + 0.05, 0.6, radius=0.05)
    _boxes(pen, lefts, wide, 0.53, 0.7, "light", 0.04)
    pen.box(0.12, 0.69, 0.88, 0.83, "dark")
    _boxes(pen, (0.03, 0.81), 0.16, 0.42, 0.84, radius=0.07)


def _bed(pen: Pen) -> None:
    if pen.style == "sketch":  # seen from its foot
        pen.box(0.12, 0.08, 0.88, 0.5, "wood", radius=0.1)
        _boxes(pen, (0.2, 0.53), 0.27, 0.26, 0.46, "paper", 0.06)
        _boxes(pen, (0.05, 0.85), 0.1, 0.8, 0.96, "wood")
        pen.polygon([(0.16, 0.42), (0.84, 0.42), (0.97, 0.74), (0.03, 0.74)])
        pen.polygon([(0.16, 0.42), (0.84, 0.42), (0.875, 0.51), (0.125, 0.51)], "light")
        pen.box(0.03, 0.72, 0.97, 0.87, "dark")
        return
    pen.box(0.03, pen.pick(0.14, 0.2, 0.1), 0.13, 0.92, "wood", radius=0.04)
    pen.box(0.12, 0.52, 0.9, 0.72, "paper", radius=0.03)
    pen.box(0.1, 0.7, 0.92, 0.82, "wood")
    pen.blob([(0.14, 0.46), (0.18, 0.37), (0.3, 0.38), (0.38, 0.44), (0.36, 0.54), (0.24, 0.55), (0.15, 0.54)], "paper")
    drop, fold = pen.pick(0.77, 0.78, 0.8), pen.pick(0.1, 0.14, 0.08)
    pen.polygon([(0.38, 0.5), (0.46, 0.42), (0.84, 0.42), (0.9, 0.48), (0.9, drop), (0.34, drop)])
    pen.polygon([(0.38, 0.5), (0.46, 0.42), (0.46 + fold, 0.42), (0.4 + fold, drop), (0.34, drop)], "light")
    for x in pen.pick((), (0.68, 0.79), ()):
        pen.line([(x, 0.45), (x - 0.03, 0.74)], "dark", 0.04)
    pen.box(0.88, pen.pick(0.38, 0.42, 0.32), 0.97, 0.92, "wood", radius=0.04)


def _toilet(pen: Pen) -> None:
    if pen.style == "sketch":  # seen from the front
        pen.box(0.22, 0.11, 0.78, 0.5, radius=0.03)
        pen.box(0.18, 0.04, 0.82, 0.14, "light", radius=0.03)
        pen.line([(0.32, 0.23), (0.42, 0.23)], "steel", 0.05)
        pen.polygon(_mirrored([(0.16, 0.7), (0.12, 0.86), (0.22, 0.97)]), "dark")
        pen.pie(0.19, 0.32, 0.81, 0.92, 0, 180)
        pen.ellipse(0.17, 0.44, 0.83, 0.76, "light")
        pen.ellipse(0.29, 0.51, 0.71, 0.7, "glass")
        return
    pen.box(0.06, 0.12, 0.32, 0.56, radius=0.03)
    pen.box(0.03, 0.06, 0.35, 0.15, "dark", radius=0.02)
    pen.box(0.12, 0.21, 0.25, 0.26, "steel", radius=0.02)
    _stroke(pen, [(0.38, 0.54), (pen.pick(0.44, 0.5, 0.42), 0.16)], "light", 0.07)
    pen.polygon([(0.24, 0.7), (0.7, 0.74), (0.62, 0.84), (0.7, 0.97), (0.2, 0.97), (0.24, 0.84)], "dark")
    pen.polygon([(0.1, 0.56), (0.93, 0.56), (0.9, 0.66), (0.8, 0.76), (0.64, 0.83), (0.36, 0.83), (0.2, 0.74)])
    pen.box(0.28, 0.51, 0.96, 0.6, pen.pick("dark", "light"), radius=0.04)


def _tv(pen: Pen) -> None:
    if pen.style == "sketch":  # an old set with aerials and knobs
        for x in (0.22, 0.78):
            pen.line([(0.5, 0.3), (x, 0.06)], "ink", 0.05)
        _boxes(pen, (0.14, 0.76), 0.1, 0.86, 0.96, "dark")
        pen.box(0.03, 0.26, 0.97, 0.89, radius=0.07)
        pen.box(0.12, 0.36, 0.68, 0.78, "glass", radius=0.1)
        pen.line([(0.82, 0.48), (0.82, 0.62)], "steel", 0.1)
        return
    for x in pen.pick((0.0,), (0.0,), (-0.28, 0.28)):
        pen.polygon([(0.43 + x, 0.74), (0.57 + x, 0.74), (0.56 + x * 1.3, 0.92), (0.44 + x * 1.3, 0.92)], "dark")
    _boxes(pen, pen.pick((0.26,), (0.26,), ()), 0.48, 0.84, 0.92, radius=0.03)
    pen.box(0.03, 0.12, 0.97, 0.78, radius=0.04)
    pen.box(0.12, 0.21, 0.88, pen.pick(0.66, 0.69, 0.67), "glass")
    pen.line([(0.22, 0.46), (0.38, 0.29)], "paper", 0.07)
    pen.circle(0.86, 0.725, 0.025, "ember")


def _laptop(pen: Pen) -> None:
    if pen.style == "sketch":  # seen from a corner
        pen.polygon([(0.26, 0.06), (0.97, 0.14), (0.93, 0.66), (0.28, 0.58)])
        pen.polygon([(0.36, 0.17), (0.87, 0.23), (0.84, 0.54), (0.37, 0.48)], "glass")
        pen.polygon([(0.28, 0.58), (0.93, 0.66), (0.72, 0.93), (0.03, 0.82)], "light")
        for i in range(3):
            pen.line([(0.27 - i * 0.06, 0.65 + i * 0.055), (0.8 - i * 0.06, 0.72 + i * 0.055)], "ink", 0.03)
        return
    left, top, keys = pen.pick(0.14, 0.16, 0.12), pen.pick(0.12, 0.08, 0.14), pen.pick(6, 5, 7)
    pen.box(left, top, 1 - left, 0.66, radius=0.04)
    pen.box(left + 0.09, top + 0.09, 0.91 - left, 0.56, "glass")
    pen.line([(0.32, 0.46), (0.42, 0.33)], "paper", 0.07)
    pen.polygon(_mirrored([(0.5 - left, 0.64), (0.47, 0.86)]), "light")
    for i in range(2 * keys):
        pitch, y = (0.94 - 2 * left + i // keys * 0.06) / keys, 0.69 + i // keys * 0.06
        x = 0.5 + (i % keys + 0.5 - keys / 2) * pitch
        pen.line([(x - 0.25 * pitch, y), (x + 0.25 * pitch, y)], "ink", 0.035)
    pen.polygon(_mirrored([(0.1, 0.785), (0.12, 0.84)]), "dark")
    pen.box(0.03, 0.85, 0.97, 0.91, "dark", radius=0.02)


def _cell_phone(pen: Pen) -> None:
    left = pen.pick(0.24, 0.22, 0.25, 0.2)
    if pen.style == "sketch":  # an older one with keys
        pen.box(0.62, 0.02, 0.74, 0.2, "dark", radius=0.03)
        pen.box(left, 0.11, 1 - left, 0.98, radius=0.1)
        pen.box(left + 0.08, 0.2, 0.92 - left, 0.53, "glass")
        for i in range(9):
            x, y = 0.31 + i % 3 * 0.16, 0.64 + i // 3 * 0.115
            pen.line([(x, y), (x + 0.06, y)], "paper", 0.06)
        return
    pen.box(left, 0.03, 1 - left, 0.97, radius=0.09)
    pen.box(left + 0.08, 0.15, 0.92 - left, 0.81, "glass")
    pen.line([(0.44, 0.085), (0.56, 0.085)], "steel", 0.035)
    pen.box(pen.pick(0.45, 0.4, 0.45), 0.85, pen.pick(0.55, 0.6, 0.55), 0.94, "steel", radius=0.045)
    for i, paint in enumerate(("ember", "leaf", "lamp", "steel", "wood", "paper")[: pen.pick(6, 4, 6)]):
        x, y = 0.37 + i % 2 * 0.15, 0.21 + i // 2 * 0.15
        pen.box(x, y, x + 0.11, y + 0.1, paint, radius=0.02)


def _book(pen: Pen) -> None:
    if pen.style == "sketch":  # lying down, seen from a corner
        pen.polygon([(0.03, 0.62), (0.6, 0.8), (0.97, 0.42), (0.97, 0.54), (0.6, 0.96), (0.03, 0.76)], "dark")
        pen.polygon([(0.06, 0.56), (0.6, 0.72), (0.6, 0.87), (0.06, 0.69)], "paper")
        pen.polygon([(0.6, 0.7), (0.97, 0.3), (0.97, 0.5), (0.6, 0.94)], "dark")
        pen.polygon([(0.03, 0.55), (0.42, 0.13), (0.97, 0.28), (0.6, 0.72)])
        pen.polygon([(0.3, 0.45), (0.46, 0.28), (0.73, 0.36), (0.58, 0.53)], "cream")
        return
    top = pen.pick(0.18, 0.2, 0.14)
    pen.polygon([(0.12, 0.82), (0.2, 0.72), (0.9, 0.72), (0.9, 0.97), (0.16, 0.97)], "dark")
    pen.box(0.2, 0.78, 0.87, 0.92, "paper")
    pen.box(0.1, 0.03, 0.9, 0.81, radius=0.03)
    pen.box(0.1, 0.03, 0.24, 0.95, "dark", radius=0.04)
    pen.box(0.34, top, 0.8, top + pen.pick(0.24, 0.16, 0.3), "cream")
    for y in pen.pick((0.25, 0.35), (0.28,), (0.24, 0.34)):
        pen.line([(0.41, y), (0.73, y)], "ink", 0.035)


def _clock(pen: Pen) -> None:
    y, radius = pen.pick(0.5, 0.55, 0.5, 0.48), pen.pick(0.46, 0.38, 0.46, 0.44)
    if pen.style == "outlined":  # an alarm clock
        for side in (-1, 1):
            pen.line([(0.5 + side * 0.2, 0.8), (0.5 + side * 0.3, 0.94)], "ink", 0.08)
            pen.circle(0.5 + side * 0.25, 0.18, 0.15, "dark")
    if pen.style == "sketch":  # a square one on feet
        _boxes(pen, (0.12, 0.72), 0.16, 0.88, 0.97, "dark")
    pen.box(0.5 - radius, y - radius, 0.5 + radius, y + radius, radius=pen.pick(radius, radius, radius, 0.12))
    inner = radius * pen.pick(0.78, 0.76, 0.74, 0.78)
    pen.circle(0.5, y, inner, "dark")
    pen.circle(0.5, y, inner - 0.03, "paper")
    for hour in range(0, 12, pen.pick(3, 3, 1, 3)):
        at = _axis(0.5, y, hour * 30)
        pen.line([at(inner - 0.06, 0), at(inner - (0.07 if hour % 3 else 0.11), 0)], "ink", 0.03)
    for reach, width, turn in ((0.62, 0.04, pen.pick(-90, -30, -120, 0)), (0.42, 0.055, pen.pick(-150, -120, -30, -135))):
        pen.line([(0.5, y), _axis(0.5, y, turn)(inner * reach, 0)], "ink", width)
    pen.circle(0.5, y, 0.04, "ember")


def _vase(pen: Pen) -> None:
    for tip, height, paint in pen.pick((), (), ((0.3, 0.16, "ember"), (0.66, 0.13, "lamp")), ()):
        pen.line([(0.5, 0.45), (tip, height)], "leaf", 0.05)
        pen.blob([_axis(tip, height, i * 24 - 90)(0.12 if i % 3 else 0.08, 0) for i in range(15)], paint)
    for x in pen.pick((), (), (), (-0.32, 0.32)):  # handles
        _stroke(pen, [(0.5, 0.22), (0.5 + 1.2 * x, 0.22), (0.5 + x, 0.5)], "dark", 0.06)
    top, lip, neck = pen.pick(0.04, 0.04, 0.32, 0.05), pen.pick(0.22, 0.18, 0.2), pen.pick(0.12, 0.09, 0.12, 0.13)
    belly, low, foot = pen.pick(0.34, 0.38, 0.33, 0.36), pen.pick(0.46, 0.62, 0.6, 0.52), pen.pick(0.14, 0.2, 0.17, 0.16)
    side = [(lip, top), (lip, top + 0.03), (neck, top + 0.1), (neck, top + pen.pick(0.17, 0.26, 0.12, 0.2)), (belly, low)]
    pen.blob(_mirrored([*side, ((belly + foot) / 2, (low + 0.95) / 2), (foot, 0.93), (foot + 0.02, 0.97)]))
    for y in pen.pick((low - 0.06, low + 0.08), (low,), (low,), (low,)):
        wave = [(0.5 + (belly - 0.05) * (i / 3 - 1), y + pen.pick(0.0, 0.05, 0.0) * (-1) ** i) for i in range(7)]
        pen.line(wave, pen.pick("dark", "light", "dark", "light"), 0.06)


def _potted_plant(pen: Pen) -> None:
    if pen.style == "sketch":  # stalks with round leaves
        for tip, height in ((0.18, 0.3), (0.82, 0.3), (0.34, 0.16), (0.66, 0.16), (0.5, 0.32)):
            pen.line([(0.5, 0.6), (tip, height)], "leaf", 0.05)
            pen.circle(tip, height, 0.13, "leaf")
    reach, wide = pen.pick(0.5, 0.54, 0.49), pen.pick(0.08, 0.11, 0.07)
    for turn in pen.pick((-72, 72, -36, 36, 0), (-50, 50, -17, 17), (-75, 75, -45, 45, -15, 15), ()):
        at = _axis(0.5, 0.56, turn - 90)
        pen.blob([at(0, 0), at(reach * 0.55, wide), at(reach, 0), at(reach * 0.55, -wide)], "leaf")
    pen.polygon(_mirrored([(0.32, 0.6), (pen.pick(0.2, 0.24, 0.26, 0.18), 0.97)]))
    pen.box(0.12, pen.pick(0.54, 0.54, 0.54, 0.5), 0.88, 0.67, pen.pick("dark", "light", "dark", "main"))


def _teddy_bear(pen: Pen) -> None:
    ear, arm, leg = pen.pick(0.11, 0.12, 0.11, 0.14), pen.pick(0.63, 0.6, 0.63, 0.57), pen.pick(0.28, 0.26, 0.28, 0.24)
    for side in (-1, 1):
        pen.circle(0.5 + side * 0.26, 0.03 + ear, ear)
        pen.circle(0.5 + side * 0.26, 0.03 + ear, ear * 0.5, "light")
        pen.circle(0.5 + side * 0.33, arm, 0.13)
    pen.ellipse(0.22, 0.44, 0.78, 0.95)
    pen.ellipse(0.34, 0.56, 0.66, 0.88, "light")
    for side in (-1, 1):
        pen.circle(0.5 + side * leg, 0.83, 0.14)
        pen.circle(0.5 + side * leg, 0.84, 0.07, pen.pick("cream", "light", "light", "main"))
    pen.ellipse(0.19, 0.06, 0.81, 0.54)
    pen.ellipse(0.35, 0.29, 0.65, 0.52, "cream")
    for side in (-1, 1):
        pen.circle(0.5 + side * 0.15, 0.25, 0.04, "ink")
        if pen.style != "outlined":  # a bow tie
            pen.polygon([(0.5, 0.57), (0.5 + side * 0.16, 0.5), (0.5 + side * 0.16, 0.64)], "ember")
    pen.ellipse(0.43, 0.31, 0.57, 0.4, "ink")
    pen.line([(0.5, 0.38), (0.5, 0.45)], "ink", 0.03)


def _toothbrush(pen: Pen) -> None:
    at = pen.pick(_axis(0.1, 0.9, -43), _axis(0.9, 0.9, -137), _axis(0.1, 0.84, -37), _axis(0.83, 0.92, -126))
    side, tufts, wide = pen.pick(-1, 1, -1, 1), pen.pick(4, 3, 4, 2), pen.pick(0.085, 0.085, 0.095, 0.1)
    for i in range(tufts):
        x0, x1 = 0.7 + i * 0.29 / tufts, 0.69 + (i + 1) * 0.29 / tufts
        tall = side * pen.pick(0.21, 0.2, 0.2 + 0.04 * (i % 2), 0.22)
        pen.polygon([at(x0, 0), at(x1, 0), at(x1, tall), at(x0, tall)], "glass" if i % 2 else "paper")
    if pen.style == "outlined":  # toothpaste
        pen.blob([at(0.71, 0.2), at(0.98, 0.2), at(0.96, 0.28), at(0.86, 0.25), at(0.76, 0.28)], "ember")
    edge = [(-0.02, wide * 0.6), (0.2, wide), (0.44, wide * 0.9), (0.58, 0.05), (0.7, 0.055), (0.98, 0.065)]
    pen.blob([at(x, y) for x, y in edge] + [at(1.03, 0.0)] + [at(x, -y) for x, y in reversed(edge)])
    pen.line([at(0.1, 0), at(pen.pick(0.38, 0.4, 0.3, 0.34), 0)], pen.pick("light", "light", "light", "dark"), 0.05)


def _sink(pen: Pen) -> None:
    if pen.style == "sketch":  # hung on the wall, its drain showing
        _stroke(pen, [(0.46, 0.7), (0.46, 0.91), (0.7, 0.91)], "steel", 0.09)
    else:
        pen.polygon(_mirrored([(0.12, 0.6), (0.1, 0.88), (0.18, 0.97)]), "dark")
    turn, top = pen.pick(1, 1, -1, -1), pen.pick(0.1, 0.08, 0.12, 0.1)
    spout = [(0.5 + turn * (0.1 - 0.15 * cos(i * pi / 6)), top + 0.13 - 0.13 * sin(i * pi / 6)) for i in range(7)]
    for x in pen.pick((0.22, 0.84), (0.22,), (0.24, 0.76), (0.82,)):
        _stroke(pen, [(x, 0.42), (x, 0.3), (x - 0.06, 0.3), (x + 0.06, 0.3)], "steel", 0.05)
    _stroke(pen, [(spout[0][0], 0.46), *spout, (spout[-1][0], top + 0.17)], "steel", pen.pick(0.08, 0.08, 0.08, 0.06))
    pen.pie(0.06, 0.12, 0.94, pen.pick(0.76, 0.7, 0.8, 0.82), 0, 180)
    if pen.style == "shaded":  # seen from above a little
        pen.ellipse(0.03, 0.38, 0.97, 0.6, "light")
        pen.ellipse(0.15, 0.42, 0.85, 0.56, "glass")
    else:
        pen.box(0.03, 0.4, 0.97, 0.51, pen.pick("dark", "light"), radius=0.03)


INDOORS: dict[str, Object] = {
    "chair": Object(_chair, (("brown", 70), ("black", 10), ("white", 8), ("red", 6), ("blue", 6)), size=0.4),
    "couch": Object(_couch, (("gray", 50), ("brown", 20), ("blue", 12), ("red", 10), ("green", 8)), size=0.5),
    "bed": Object(_bed, (("blue", 50), ("white", 20), ("red", 10), ("pink", 10), ("purple", 5), ("green", 5)), size=0.5),
    "toilet": Object(_toilet, (("white", 94), ("pink", 3), ("blue", 3)), size=0.38),
    "tv": Object(_tv, (("black", 85), ("gray", 10), ("brown", 5)), size=0.42),
    "laptop": Object(_laptop, (("gray", 70), ("black", 20), ("white", 7), ("pink", 3)), size=0.36),
    "cell phone": Object(_cell_phone, (("black", 70), ("white", 12), ("gray", 8), ("pink", 5), ("blue", 5)), size=0.26),
    "book": Object(_book, (("red", 45), ("blue", 20), ("green", 12), ("brown", 10), ("black", 8), ("yellow", 5)), size=0.28),
    "clock": Object(_clock, (("black", 60), ("brown", 15), ("white", 15), ("red", 10)), size=0.3),
    "vase": Object(_vase, (("blue", 60), ("white", 20), ("green", 8), ("red", 6), ("yellow", 6)), size=0.32),
    "potted plant": Object(_potted_plant, (("brown", 65), ("orange", 20), ("white", 10), ("blue", 5)), size=0.38),
    "teddy bear": Object(_teddy_bear, (("brown", 85), ("white", 6), ("pink", 5), ("yellow", 4)), size=0.34),
    "toothbrush": Object(_toothbrush, (("blue", 50), ("green", 16), ("pink", 14), ("red", 10), ("purple", 10)), size=0.26),
    "sink": Object(_sink, (("white", 88), ("gray", 10), ("pink", 2)), size=0.4),
}
