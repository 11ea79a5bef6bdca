"""The animals of the pocket world."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin

from mgap.pocket.drawing import Object, Pen, Point

Stroke = tuple[Sequence[Point], float]  # points and width


class _Side:
    """A pen for an animal that faces left, or right if mirrored."""

    def __init__(self, pen: Pen, is_mirrored: bool) -> None:
        self.pen, self._is_mirrored = pen, is_mirrored
        self._rim = pen.pick(0.0, 0.022, 0.014, 0.034)

    def _mirror(self, points: Sequence[Point]) -> list[Point]:
        return [(1 - x, y) if self._is_mirrored else (x, y) for x, y in points]

    def blob(self, points: Sequence[Point], paint: str = "main") -> None:
        self.pen.blob(self._mirror(points), paint)

    def polygon(self, points: Sequence[Point], paint: str = "main") -> None:
        self.pen.polygon(self._mirror(points), paint)

    def oval(self, x: float, y: float, rx: float, ry: float, paint: str = "main") -> None:
        ((x, y),) = self._mirror([(x, y)])
        self.pen.ellipse(x - rx, y - ry, x + rx, y + ry, paint)

    def line(self, points: Sequence[Point], paint: str = "ink", width: float = 0.04) -> None:
        self.pen.line(self._mirror(points), paint, width)

    def dot(self, x: float, y: float, width: float, paint: str = "ink") -> None:
        self.line([(x, y), (x, y)], paint, width)

    def eye(self, x: float, y: float, width: float = 0.09) -> None:
        """An eye that is visible on any coat."""
        self.dot(x, y, width, "paper")
        self.dot(x, y, width * 0.6, "ink")

    def rims(self, *strokes: Stroke) -> None:
        """The outlines of strokes; filling them later covers the seams."""
        for points, width in strokes:
            if self._rim:
                self.line(points, "ink", width + self._rim)

    def fills(self, *strokes: Stroke, paint: str = "main") -> None:
        for points, width in strokes:
            self.line(points, paint, width - self._rim)

    def limbs(self, *strokes: Stroke, paint: str = "main") -> None:
        self.rims(*strokes)
        self.fills(*strokes, paint=paint)


def _legs(xs: Sequence[float], top: float, bottom: float, width: float, spread: float = 0.0) -> list[Stroke]:
    return [([(x, top), (x + spread, bottom)], width) for x in xs]


def _cat(pen: Pen) -> None:
    """Sitting, seen from the front."""
    s = _Side(pen, pen.pick(False, True, False, True))
    wide, head = pen.pick(0.0, 0.02, -0.02, 0.03), pen.pick(0.31, 0.30, 0.32, 0.34)
    tail = pen.pick(
        [(0.6, 0.9), (0.76, 0.9), (0.84, 0.85), (0.87, 0.78), (0.85, 0.66), (0.83, 0.57), (0.85, 0.5), (0.91, 0.45)],
        [(0.6, 0.9), (0.76, 0.89), (0.85, 0.84), (0.89, 0.75), (0.9, 0.62), (0.9, 0.52)],
        [(0.6, 0.9), (0.78, 0.91), (0.86, 0.88), (0.9, 0.81), (0.89, 0.73), (0.84, 0.67), (0.78, 0.66)],
        [(0.6, 0.88), (0.78, 0.86), (0.86, 0.81), (0.9, 0.72), (0.91, 0.62)],
    )
    s.limbs((tail, pen.pick(0.1, 0.09, 0.1, 0.12)))
    s.blob([(0.34, 0.5), (0.6, 0.5), (0.72 + wide, 0.76), (0.7 + wide, 0.95), (0.24 - wide, 0.95), (0.22 - wide, 0.76)])
    for x in (0.4, 0.54):
        s.line([(x, 0.76), (x, 0.93)], "dark", 0.03)
    for side in (-1, 1):  # ears
        s.polygon([(0.47 + side * x, y) for x, y in ((0.06, 0.14), (0.25, 0.03), (0.28, 0.3))])
        s.polygon([(0.47 + side * x, y) for x, y in ((0.13, 0.14), (0.22, 0.09), (0.24, 0.22))], "skin")
    s.oval(0.47, head, 0.29 + wide, 0.22)
    for x in (0.36, 0.58):
        s.eye(x, head - 0.03, 0.12)
    s.polygon([(0.43, head + 0.06), (0.51, head + 0.06), (0.47, head + 0.11)], "skin")
    for side in (-1, 1):  # whiskers
        for drop in (0.05, 0.12):
            s.line([(0.47 + side * 0.16, head + 0.07), (0.47 + side * 0.38, head + drop)], "ink", 0.022)
    if pen.pick(True, False, True, False):
        for x in (0.39, 0.47, 0.55):
            s.line([(x, head - 0.19), (x, head - 0.12)], "dark", 0.035)


def _dog(pen: Pen) -> None:
    """Sitting, from the side, with a hanging ear and a collar."""
    s = _Side(pen, pen.pick(False, True, False, True))
    snout, ear = pen.pick(0.12, 0.15, 0.1, 0.13), pen.pick(0.42, 0.38, 0.46, 0.44)
    front, far = ([(0.38, 0.6), (0.36, 0.92)], 0.12), ([(0.5, 0.6), (0.49, 0.92)], 0.11)
    s.limbs(([(0.76, 0.88), (0.92, 0.8), pen.pick((0.93, 0.58), (0.88, 0.6), (0.95, 0.66), (0.86, 0.5))], 0.08))
    s.limbs(far, paint="dark")
    muzzle = ([(0.34, 0.27), (snout, 0.31)], 0.17)
    s.line([(0.2, 0.38), (0.18, 0.47)], "ember", 0.07)
    s.rims(front, muzzle)
    s.blob([(0.29, 0.42), (0.5, 0.36), (0.64, 0.52), (0.8, 0.7), (0.85, 0.87), (0.74, 0.95), (0.58, 0.93), (0.4, 0.74)])
    s.oval(0.38, 0.23, 0.17, 0.18)
    s.fills(front, muzzle)
    s.line([(0.34, 0.94), (0.29, 0.94)], "main", 0.06)
    s.line([(0.3, 0.44), (0.42, 0.46), (0.52, 0.4)], "ember", 0.065)
    s.line([(0.6, 0.88), (0.6, 0.76), (0.7, 0.68)], "dark", 0.035)
    s.blob([(0.4, 0.09), (0.5, 0.09), (0.6, 0.26), (0.57, ear), (0.48, ear - 0.02), (0.45, 0.24)], "dark")
    s.eye(0.31, 0.2, 0.1)
    s.dot(snout - 0.05, 0.27, 0.1)


def _horse(pen: Pen) -> None:
    s = _Side(pen, pen.pick(False, False, True, True))
    up, tail, step = pen.pick(0.0, 0.02, -0.01, 0.03), pen.pick(0.76, 0.7, 0.8, 0.66), pen.pick(0.0, 0.02, -0.02, 0.06)
    near: list[Stroke] = [([(0.33, 0.54), (0.32 - step, 0.91)], 0.085), ([(0.81, 0.5), (0.85, 0.7), (0.83, 0.91)], 0.085)]
    far: list[Stroke] = [([(0.41, 0.54), (0.46, 0.91)], 0.075), ([(0.74, 0.52), (0.71 - step, 0.91)], 0.075)]
    s.limbs(([(0.86, 0.43), (0.93, 0.48), (0.95, 0.58), (0.93, tail)], 0.085), paint="dark")
    s.limbs(*far, paint="dark")
    s.polygon([(0.27, 0.14 + up), (0.29, 0.02 + up), (0.37, 0.14 + up)])
    s.rims(*near)
    s.blob([(0.05, 0.36 + up), (0.12, 0.42 + up), (0.23, 0.33 + up), (0.28, 0.36), (0.26, 0.48), (0.31, 0.58), (0.48, 0.6),
            (0.66, 0.58), (0.84, 0.57), (0.89, 0.46), (0.81, 0.38), (0.62, 0.41), (0.49, 0.36), (0.42, 0.2 + up),
            (0.31, 0.11 + up), (0.21, 0.15 + up), (0.11, 0.26 + up)])  # fmt: skip
    s.fills(*near)
    for points, width in (*near, *far):
        x, y = points[-1]
        s.line([(x - 0.01, y + 0.02), (x + 0.01, y + 0.02)], "ink", width)
    s.line([(0.32, 0.1 + up), (0.43, 0.19 + up), (0.5, 0.38)], "dark", pen.pick(0.08, 0.07, 0.09, 0.1))
    if pen.pick(False, True, False, True):
        s.line([(0.3, 0.1 + up), (0.22, 0.19 + up)], "dark", 0.05)
    s.eye(0.25, 0.21 + up, 0.075)
    s.dot(0.08, 0.34 + up, 0.035)


def _sheep(pen: Pen) -> None:
    """A woolly cloud on thin legs."""
    s = _Side(pen, pen.pick(False, True, True, True))
    bumps, face = pen.pick(11, 9, 13, 8), pen.pick("ink", "cream", "ink", "cream")
    for x in pen.pick((0.42, 0.54, 0.72, 0.83), (0.42, 0.54, 0.7, 0.82), (0.42, 0.54, 0.72, 0.83), (0.46, 0.76)):
        s.line([(x, 0.6), (x, pen.pick(0.92, 0.9, 0.93, 0.92))], "ink", pen.pick(0.075, 0.07, 0.075, 0.1))
    wool: list[Point] = []
    for i in range(bumps * 8):
        turn, r = 2 * pi * i / (bumps * 8), 0.86 + 0.14 * abs(sin(pi * i / 8))
        wool.append((0.6 + 0.37 * r * cos(turn), 0.45 + pen.pick(0.31, 0.29, 0.32, 0.31) * r * sin(turn)))
    s.polygon(wool)
    for x, y in ((0.62, 0.36), (0.76, 0.52), (0.56, 0.58)):
        s.line([(x - 0.07, y), (x - 0.03, y + 0.04), (x + 0.03, y + 0.04), (x + 0.07, y)], "dark", 0.03)
    for x, tip in ((0.14, 0.04), (0.34, 0.44)):  # ears
        s.blob([(x, 0.33), ((x + tip) / 2, 0.31), (tip, 0.37), ((x + tip) / 2, 0.42), (x, 0.42)], face)
    s.blob([(0.12, 0.32), (0.24, 0.25), (0.36, 0.32), (0.34, 0.5), (0.24, 0.64), (0.14, 0.5)], face)
    for x in (0.16, 0.24, 0.32):
        s.oval(x, 0.27 - 0.03 * (x == 0.24), 0.075, 0.07)
    for x in (0.185, 0.295):
        s.eye(x, 0.42, 0.08)
    s.line([(0.22, 0.56), (0.26, 0.56)], "skin" if face == "ink" else "ink", 0.04)


def _cow(pen: Pen) -> None:
    """A boxy body with patches, its horned head to the front."""
    s = _Side(pen, pen.pick(False, True, False, True))
    near, far = _legs((0.4, 0.85), 0.6, 0.9, 0.1), _legs((0.53, 0.73), 0.6, 0.88, pen.pick(0.09, 0.08, 0.09, 0.07))
    s.limbs(([(0.9, 0.36), (0.95, 0.46), (0.94, 0.62)], 0.045))
    s.dot(0.94, 0.66, 0.09)
    s.limbs(*far, paint="dark")
    s.oval(0.66, 0.69, 0.08, 0.07, "skin")
    s.rims(*near)
    s.blob(
        [(0.3, 0.31), (0.5, 0.28), (0.8, 0.28), (0.91, 0.33), (0.92, 0.55), (0.86, 0.67), (0.6, 0.69), (0.38, 0.68), (0.3, 0.5)]
    )
    s.fills(*near)
    for points, width in (*near, *far):
        x, y = points[-1]
        s.line([(x, y), (x, y + 0.03)], "ink", width)
    for x, y, rx, ry in pen.pick(
        ((0.56, 0.38, 0.09, 0.08), (0.8, 0.48, 0.08, 0.1)),
        ((0.5, 0.54, 0.08, 0.09), (0.74, 0.38, 0.11, 0.08)),
        ((0.52, 0.4, 0.08, 0.09), (0.7, 0.56, 0.08, 0.07), (0.83, 0.38, 0.06, 0.06)),
        ((0.6, 0.41, 0.11, 0.1), (0.82, 0.57, 0.06, 0.06)),
    ):
        s.blob([(x - rx, y), (x - rx * 0.5, y - ry), (x + rx * 0.8, y - ry * 0.8), (x + rx, y + ry * 0.4), (x, y + ry)], "ink")
    horn = pen.pick(0.07, 0.1, 0.06, 0.05)
    for side in (-1, 1):
        s.limbs(([(0.23 + side * 0.08, 0.22), (0.23 + side * 0.15, 0.17), (0.23 + side * 0.15, horn)], 0.06), paint="cream")
        s.blob([(0.23 + side * x, y) for x, y in ((0.1, 0.26), (0.17, 0.23), (0.21, 0.28), (0.16, 0.34), (0.1, 0.33))], "dark")
    s.blob([(0.11, 0.22), (0.23, 0.19), (0.35, 0.22), (0.34, 0.42), (0.3, 0.54), (0.16, 0.54), (0.12, 0.42)])
    s.oval(0.23, 0.51, 0.15, 0.1, "skin")
    for x in (0.17, 0.29):
        s.eye(x, 0.32, 0.09)
        s.dot(x, 0.51, 0.045)


def _bird(pen: Pen) -> None:
    """A songbird from the side."""
    s = _Side(pen, pen.pick(False, True, False, True))
    tail = pen.pick(0.72, 0.66, 0.78, 0.4)
    for x in (0.42, 0.54):
        s.line([(x + 0.02, 0.74), (x, 0.93), (x - 0.08, 0.94)], "ink", 0.035)
    s.polygon([(0.66, 0.5), (0.95, tail - 0.06), (0.97, tail + 0.08), (0.6, 0.72)], "dark")
    s.polygon([(0.2, 0.2), (0.02, 0.31), (0.2, 0.37)], "crust")
    if pen.pick(False, False, True, True):
        s.polygon([(0.26, 0.16), (0.46, 0.03), (0.44, 0.2)])
    s.blob([(0.16, 0.26), (0.22, 0.13), (0.36, 0.1), (0.47, 0.2), (0.54, 0.34), (0.72, 0.48), (0.76, 0.62), (0.62, 0.76),
            (0.4, 0.79), (0.22, 0.68), (0.17, 0.48)])  # fmt: skip
    s.blob([(0.2, 0.5), (0.3, 0.46), (0.44, 0.7), (0.4, 0.765), (0.26, 0.69)], "light")
    wing = pen.pick(0.86, 0.82, 0.8, 0.88)
    s.blob([(0.42, 0.4), (0.54, 0.4), (0.7, 0.52), (wing, pen.pick(0.66, 0.62, 0.7, 0.6)), (0.62, 0.68), (0.46, 0.6)], "dark")
    s.eye(0.31, 0.25, 0.11)


def _elephant(pen: Pen) -> None:
    s = _Side(pen, pen.pick(False, True, False, True))
    near, far = _legs((0.47, 0.82), 0.6, 0.88, 0.16), _legs((0.6, 0.7), 0.6, 0.86, 0.14)
    trunk = pen.pick(
        [(0.2, 0.4), (0.13, 0.55), (0.12, 0.74), (0.06, 0.82)],
        [(0.2, 0.4), (0.13, 0.6), (0.12, 0.86)],
        [(0.2, 0.4), (0.14, 0.58), (0.15, 0.76), (0.22, 0.84)],
        [(0.26, 0.46), (0.17, 0.58), (0.1, 0.56), (0.07, 0.46), (0.08, 0.3), (0.1, 0.12)],
    )
    s.limbs(([(0.92, 0.42), (0.96, 0.5), (0.95, 0.64)], 0.04), paint="dark")
    s.limbs(*far, paint="dark")
    s.rims(*near, (trunk, 0.12))
    s.blob([(0.36, 0.2), (0.6, 0.12), (0.82, 0.18), (0.94, 0.38), (0.9, 0.64), (0.66, 0.72), (0.44, 0.7), (0.34, 0.5)])
    brow = pen.pick(0.12, 0.12, 0.12, 0.2)
    s.blob([(brow, 0.34), (brow + 0.04, 0.17), (0.32, 0.1), (0.46, 0.2), (0.46, 0.44), (0.32, 0.54), (brow + 0.06, 0.5)])
    s.fills(*near, (trunk, 0.12))
    s.blob([(0.34, 0.2), (0.5, 0.14), (0.64, 0.24), (0.64, 0.44), (pen.pick(0.5, 0.54, 0.5, 0.46), 0.6), (0.4, 0.46)], "dark")
    s.blob([(0.38, 0.24), (0.5, 0.2), (0.58, 0.28), (0.57, 0.42), (0.5, 0.5), (0.43, 0.42)], "light")
    tusk = pen.pick([(0.26, 0.5), (0.24, 0.6), (0.3, 0.68)], [(0.24, 0.52), (0.26, 0.64)], [(0.27, 0.5), (0.28, 0.66)],
                    [(0.28, 0.54), (0.24, 0.68), (0.14, 0.73)])  # fmt: skip
    s.limbs((tusk, 0.06), paint="paper")
    s.eye(brow + 0.12, 0.29, 0.085)
    for x in (0.42, 0.51, 0.77, 0.86):
        s.dot(x, 0.93, 0.06, "paper")


def _bear(pen: Pen) -> None:
    """Bulky, on four thick legs, its round-eared head to the front."""
    s = _Side(pen, pen.pick(False, True, False, True))
    near, far = _legs((0.42, 0.83), 0.6, 0.87, 0.18), _legs((0.56, 0.7), 0.6, 0.86, 0.15)
    hump = pen.pick(0.17, 0.2, 0.14, 0.12)
    s.limbs(*far, paint="dark")
    s.rims(*near)
    s.dot(0.93, 0.42, 0.09, "dark")
    s.blob(
        [
            (0.3, 0.34),
            (0.42, hump),
            (0.62, 0.22),
            (0.82, 0.24),
            (0.94, 0.4),
            (0.94, 0.62),
            (0.76, 0.7),
            (0.5, 0.73),
            (0.34, 0.66),
        ]
    )
    s.fills(*near)
    for x in (0.35, 0.42, 0.49, 0.76, 0.83, 0.9):
        s.line([(x, 0.93), (x - 0.01, 0.95)], "paper", 0.035)
    ear = pen.pick(0.08, 0.075, 0.085, 0.09)
    for x in (0.09, 0.41):
        s.oval(x + 0.02, 0.25, ear, ear)
        s.dot(x + 0.02, 0.25, ear, "dark")
    s.blob([(0.07, 0.4), (0.12, 0.26), (0.27, 0.2), (0.42, 0.26), (0.47, 0.4), (0.4, 0.56), (0.27, 0.62), (0.14, 0.56)])
    s.oval(0.27, 0.5, 0.13, 0.115, "light")
    s.blob([(0.2, 0.43), (0.34, 0.43), (0.27, 0.51)], "ink")
    s.line([(0.27, 0.5), (0.27, 0.56)], "ink", 0.03)
    for x in (0.17, 0.37):
        s.eye(x, 0.36, 0.085)


ANIMALS: dict[str, Object] = {
    "cat": Object(_cat, (("orange", 60), ("gray", 20), ("black", 14), ("white", 6)), size=0.34),
    "dog": Object(_dog, (("brown", 64), ("black", 18), ("white", 12), ("yellow", 6)), size=0.36),
    "horse": Object(_horse, (("brown", 76), ("black", 12), ("white", 12)), size=0.46),
    "sheep": Object(_sheep, (("white", 88), ("black", 8), ("brown", 4)), size=0.38),
    "cow": Object(_cow, (("white", 62), ("brown", 26), ("black", 12)), size=0.46),
    "bird": Object(_bird, (("blue", 50), ("red", 16), ("yellow", 12), ("gray", 12), ("black", 10)), size=0.28),
    "elephant": Object(_elephant, (("gray", 95), ("brown", 5)), size=0.5),
    "bear": Object(_bear, (("brown", 74), ("black", 18), ("white", 8)), size=0.46),
}
