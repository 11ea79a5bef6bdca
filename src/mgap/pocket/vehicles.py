"""The vehicles of the pocket world."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.pocket.drawing import Object, Pen, Point


def _wheel(pen: Pen, x: float, y: float, radius: float, hub: str = "steel") -> None:
    pen.circle(x, y, radius, "tyre")
    pen.line([(x, y), (x, y)], hub, radius)


def _rod(pen: Pen, points: Sequence[Point], width: float = 0.06, paint: str = "main") -> None:
    """A stroke with the outline of its style."""
    rim = pen.pick(0.0, 0.022, 0.014, 0.034)
    if rim:
        pen.line(points, "ink", width + rim)
    pen.line(points, paint, width - rim / 2)


def _bicycle(pen: Pen) -> None:
    r, y = pen.pick(0.22, 0.21, 0.225, 0.2), pen.pick(0.7, 0.71, 0.7, 0.72)
    back, front = (0.26, y), (0.74, y)
    for x, _ in (back, front):
        pen.arc(x - r, y - r, x + r, y + r, 0, 360, "tyre", 0.045)
        pen.arc(x - r + 0.045, y - r + 0.045, x + r - 0.045, y + r - 0.045, 0, 360, "main", 0.045)
    pedal, seat, head = (0.46, y + 0.01), (0.38, 0.4), (0.66, 0.38)
    low = pen.pick(0.0, 0.0, 0.06, 0.12)  # of the top bar, at the seat
    top = (seat[0] + low * 0.27, seat[1] + low)
    _rod(pen, [seat, (0.355, 0.29)], 0.05, "steel")
    _rod(pen, [front, head, (0.63, 0.24)], 0.065)
    for points in ([back, top], [back, pedal], [pedal, head], [top, head], [pedal, seat]):
        _rod(pen, points, 0.065)
    for points in ([back, top, head, pedal, back], [pedal, seat]):
        pen.line(points, "main", 0.05)
    pen.line([(0.25, 0.27), (0.43, 0.27)], "ink", 0.075)
    bar = pen.pick(
        [(0.63, 0.24), (0.73, 0.2), (0.8, 0.26), (0.74, 0.33)],
        [(0.54, 0.24), (0.63, 0.23), (0.76, 0.2)],
        [(0.63, 0.24), (0.75, 0.21), (0.79, 0.3)],
        [(0.5, 0.24), (0.56, 0.17), (0.63, 0.24), (0.7, 0.18)],
    )
    pen.line(bar, "ink", 0.055)
    pen.line([(pedal[0] - 0.03, pedal[1] - 0.02), (pedal[0] + 0.06, pedal[1] + 0.13)], "ink", 0.045)
    pen.line([pedal, pedal], "steel", 0.1)
    if pen.style == "sketch":  # a basket
        pen.box(0.74, 0.28, 0.95, 0.44, "wood", 0.02)


def _car(pen: Pen) -> None:
    roof = pen.pick(
        [(0.16, 0.48), (0.3, 0.2), (0.66, 0.2), (0.83, 0.48)],
        [(0.13, 0.48), (0.28, 0.23), (0.6, 0.23), (0.76, 0.48)],
        [(0.2, 0.48), (0.34, 0.21), (0.7, 0.21), (0.87, 0.48)],
        [(0.05, 0.48), (0.11, 0.16), (0.55, 0.16), (0.72, 0.48)],
    )
    (a, _), (b, top), (c, _), (d, _) = roof
    post = (b + c) / 2
    pen.polygon(roof)
    pen.box(0.03, 0.43, 0.97, 0.76, "main", pen.pick(0.1, 0.08, 0.12, 0.06))
    for window in ([(a + 0.06, 0.46), (b + 0.03, top + 0.06), (post - 0.02, top + 0.06), (post - 0.02, 0.46)],
                   [(post + 0.02, 0.46), (post + 0.02, top + 0.06), (c - 0.02, top + 0.06), (d - 0.07, 0.46)]):  # fmt: skip
        pen.polygon(window, "glass")
    pen.line([(post, 0.51), (post, 0.69)], "dark", 0.03)
    pen.line([(post + 0.06, 0.54), (post + 0.12, 0.54)], "ink", 0.035)
    pen.box(0.88, 0.51, 0.97, 0.6, "lamp", 0.02)
    pen.box(0.03, 0.51, 0.09, 0.6, "ember", 0.02)
    for x in pen.pick((0.25, 0.75), (0.24, 0.74), (0.26, 0.76), (0.22, 0.76)):
        _wheel(pen, x, 0.76, pen.pick(0.135, 0.13, 0.14, 0.15))


def _motorcycle(pen: Pen) -> None:
    y, r, rim = 0.73, pen.pick(0.2, 0.19, 0.205, 0.2), 0.065
    for x in (0.22, 0.78):
        pen.arc(x - r, y - r, x + r, y + r, 0, 360, "tyre", rim)
        pen.arc(x - r + rim, y - r + rim, x + r - rim, y + r - rim, 0, 360, "main", pen.pick(0.05, 0.05, 0.05, 0.06))
        pen.line([(x, y), (x, y)], "steel", 0.09)
    _rod(pen, [(0.78, y), (0.68, 0.36), (0.64, 0.24)], 0.06, "steel")
    pen.line([(0.22, y), (0.42, 0.62)], "ink", 0.06)
    pen.box(0.4, 0.54, 0.58, 0.8, "steel", 0.04)
    pen.line([(0.45, 0.7), (0.53, 0.7)], "ink", 0.035)
    pen.blob([(0.03, 0.44), (0.12, 0.36), (0.34, 0.42), (0.52, 0.48), (0.48, 0.6), (0.34, 0.64), (0.2, 0.54)])  # tail
    pen.blob([(0.36, 0.46), (0.42, 0.32), (0.56, 0.26), (0.72, 0.36), (0.72, 0.5), (0.58, 0.62), (0.42, 0.6)])  # tank
    seat = pen.pick(0.36, 0.34, 0.38, 0.35)
    pen.blob(
        [(0.08, seat), (0.18, seat - 0.04), (0.3, seat + 0.03), (0.42, seat), (0.4, seat + 0.08), (0.26, seat + 0.09)], "ink"
    )
    pen.pie(0.78 - r - 0.02, y - r - 0.02, 0.78 + r + 0.02, y + r + 0.02, 205, 320)
    pen.line([(0.78, y), (0.72, 0.46)], "steel", 0.05)
    pipe = pen.pick((0.08, 0.83), (0.12, 0.85), (0.07, 0.85), (0.1, 0.76))
    _rod(pen, [(0.5, 0.8), (0.34, 0.85), pipe], 0.065, "steel")
    lift = pen.pick(0.0, 0.02, -0.01, -0.07)
    pen.line([(0.65, 0.26), (0.56, 0.19 + lift), (0.47, 0.21 + lift)], "ink", 0.055)
    pen.circle(0.75, 0.29, pen.pick(0.07, 0.075, 0.07, 0.085), "lamp")


def _airplane(pen: Pen) -> None:
    """An airliner, nose to the right, a wing to either side."""
    sweep, thick = pen.pick(0.0, 0.04, -0.04, 0.02), pen.pick(0.0, 0.01, -0.01, 0.03)
    pen.polygon([(0.5, 0.46), (0.42 - sweep, 0.1), (0.52 - sweep, 0.1), (0.72, 0.44)], "dark")
    pen.polygon([(0.04, 0.16), (0.15, 0.16), (0.32, 0.46), (0.12, 0.5)])
    pen.blob([(0.06, 0.43), (0.3, 0.41 - thick), (0.7, 0.4 - thick), (0.88, 0.43), (0.97, 0.52), (0.88, 0.6),
              (0.7, 0.62 + thick), (0.4, 0.61 + thick), (0.2, 0.55)])  # fmt: skip
    pen.polygon([(0.08, 0.49), (0.26, 0.49), (0.14, 0.64), (0.04, 0.64)], "dark")
    pen.polygon([(0.82, 0.42), (0.89, 0.44), (0.94, 0.49), (0.83, 0.49)], "glass")
    for i in range(pen.pick(5, 4, 6, 3)):
        x = 0.75 - i * pen.pick(0.09, 0.1, 0.075, 0.13)
        pen.line([(x, 0.47), (x, 0.47)], "ink", pen.pick(0.05, 0.055, 0.045, 0.07))
    for x, y in pen.pick(((0.44, 0.7),), ((0.42, 0.7),), ((0.46, 0.72),), ((0.5, 0.66), (0.38, 0.8))):
        pen.box(x, y, x + 0.17, y + 0.09, "steel", 0.04)
    pen.polygon([(0.4, 0.55), (0.68, 0.55), (0.36 - sweep, 0.95), (0.22 - sweep, 0.95)])
    pen.line([(0.41, 0.56), (0.66, 0.56)], "dark", 0.03)


def _bus(pen: Pen) -> None:
    top, n = pen.pick(0.18, 0.22, 0.16, 0.1), pen.pick(4, 3, 5, 4)
    pen.box(0.03, top, 0.97, 0.8, "main", pen.pick(0.06, 0.04, 0.09, 0.05))
    step = 0.66 / n
    rows = pen.pick((top + 0.07,), (top + 0.07,), (top + 0.07,), (top + 0.05, top + 0.29))  # the last has two decks
    high = pen.pick(0.2, 0.2, 0.2, 0.17)
    for y in rows:
        for i in range(n):
            pen.box(0.07 + i * step, y, 0.07 + (i + 1) * step - 0.03, y + high, "glass", 0.01)
    pen.box(0.75, rows[-1], 0.87, 0.77, "glass", 0.01)
    pen.line([(0.81, rows[-1] + 0.03), (0.81, 0.74)], "ink", 0.025)
    pen.box(0.91, rows[-1], 0.97, rows[-1] + 0.2, "glass")
    if len(rows) > 1:
        pen.box(0.75, rows[0], 0.97, rows[0] + high, "glass")
    else:
        pen.box(0.04, 0.55, 0.72, 0.6, "dark")
    pen.box(0.91, 0.64, 0.97, 0.71, "lamp")
    for x in (0.22, 0.64):
        _wheel(pen, x, 0.79, 0.115)


def _train(pen: Pen) -> None:
    """A steam engine on rails."""
    pen.line([(0.04, 0.94), (0.96, 0.94)], "steel", 0.045)
    tall = pen.pick(0.2, 0.16, 0.22, 0.18)
    for x, y, r in ((0.66, 0.1, 0.06), (0.54, 0.08, 0.05)):
        pen.circle(x, y, r, "paper")
    stack = pen.pick((0.06, 0.06), (0.05, 0.09), (0.07, 0.07), (0.04, 0.1))
    pen.polygon([(0.76 - stack[0], 0.44), (0.76 - stack[1], tall), (0.76 + stack[1], tall), (0.76 + stack[0], 0.44)], "dark")
    pen.pie(0.47, 0.28, 0.61, 0.52, 180, 360, "lamp")
    pen.polygon([(0.82, 0.7), (0.9, 0.7), (0.98, 0.91), (0.8, 0.91)], "ember")
    pen.box(0.36, 0.39, 0.88, 0.69, "main", pen.pick(0.06, 0.03, 0.08, 0.05))
    for x in pen.pick((0.66,), (0.56, 0.72), (0.64,), (0.58,)):
        pen.box(x, 0.39, x + 0.045, 0.69, "dark")
    pen.box(0.07, 0.22, 0.42, 0.76, "main")
    pen.box(0.03, 0.16, 0.46, 0.25, "dark", pen.pick(0.0, 0.02, 0.04, 0.0))
    pen.box(0.14, 0.31, 0.35, 0.5, "glass", pen.pick(0.0, 0.02, 0.09, 0.03))
    pen.box(0.07, 0.68, 0.88, 0.77, "dark")
    pen.circle(0.88, 0.49, 0.06, "lamp")
    _wheel(pen, 0.22, 0.78, 0.14, "ember")
    for x in pen.pick((0.5, 0.72), (0.5, 0.72), (0.5, 0.72), (0.53, 0.74)):
        _wheel(pen, x, 0.82, pen.pick(0.1, 0.1, 0.1, 0.095), "ember")
    pen.line([(0.22, 0.8), (0.72, 0.82)], "steel", 0.04)


def _truck(pen: Pen) -> None:
    """A windowless cargo box behind a cab."""
    top, cab = pen.pick(0.18, 0.22, 0.15, 0.12), pen.pick(0.36, 0.4, 0.34, 0.3)
    pen.box(0.06, 0.68, 0.95, 0.78, "ink")
    pen.box(0.03, top, 0.61, 0.7, "main", 0.02)
    for i in range(pen.pick(3, 0, 4, 2)):
        x = 0.03 + 0.58 * (i + 1) / (pen.pick(3, 0, 4, 2) + 1)
        pen.line([(x, top + 0.07), (x, 0.64)], "dark", 0.03)
    if pen.style == "outlined":
        pen.box(0.05, 0.44, 0.59, 0.53, "light")
    front = pen.pick(0.84, 0.8, 0.86, 0.95)
    pen.polygon([(0.66, 0.77), (0.66, cab), (front, cab), (pen.pick(0.9, 0.84, 0.92, 0.96), 0.54), (0.97, 0.58), (0.97, 0.77)])
    pen.polygon(
        [(0.71, 0.53), (0.71, cab + 0.05), (front - 0.03, cab + 0.05), (pen.pick(0.85, 0.8, 0.87, 0.92), 0.53)], "glass"
    )
    pen.line([(0.72, 0.61), (0.77, 0.61)], "ink", 0.035)
    pen.box(0.91, 0.62, 0.97, 0.69, "lamp")
    for x in pen.pick((0.17, 0.42, 0.81), (0.24, 0.8), (0.16, 0.41, 0.81), (0.15, 0.4, 0.82)):
        _wheel(pen, x, 0.78, pen.pick(0.115, 0.125, 0.115, 0.11))


def _boat(pen: Pen) -> None:
    """A sailing boat."""
    mast = pen.pick(0.48, 0.52, 0.46, 0.6)
    pen.line([(mast, 0.06), (mast, 0.7)], "wood", 0.045)
    pen.polygon(pen.pick(
        [(0.53, 0.1), (0.88, 0.56), (0.53, 0.56)],
        [(0.57, 0.14), (0.9, 0.57), (0.57, 0.57)],
        [(0.51, 0.08), (0.72, 0.28), (0.86, 0.56), (0.51, 0.56)],
        [(0.55, 0.06), (0.3, 0.26), (0.1, 0.56), (0.55, 0.56)],
    ), "paper")  # fmt: skip
    pen.polygon(pen.pick(
        [(0.43, 0.16), (0.43, 0.56), (0.16, 0.56)],
        [(0.47, 0.1), (0.47, 0.57), (0.12, 0.57)],
        [(0.41, 0.2), (0.41, 0.56), (0.2, 0.56)],
        [(0.65, 0.16), (0.65, 0.56), (0.88, 0.56)],
    ), "light")  # fmt: skip
    pen.polygon([(0.03, 0.63), (0.97, 0.63), (pen.pick(0.82, 0.86, 0.78, 0.88), 0.94), (pen.pick(0.2, 0.16, 0.24, 0.14), 0.94)])
    pen.line([(0.13, 0.73), (0.88, 0.73)], "paper", pen.pick(0.06, 0.05, 0.06, 0.04))


VEHICLES: dict[str, Object] = {
    "bicycle": Object(_bicycle, (("red", 46), ("blue", 24), ("black", 18), ("green", 12)), size=0.4),
    "car": Object(_car, (("red", 44), ("blue", 20), ("white", 14), ("gray", 12), ("black", 10)), size=0.44),
    "motorcycle": Object(_motorcycle, (("red", 50), ("black", 28), ("blue", 22)), size=0.4),
    "airplane": Object(_airplane, (("white", 80), ("gray", 12), ("blue", 8)), size=0.5),
    "bus": Object(_bus, (("yellow", 56), ("red", 24), ("white", 12), ("blue", 8)), size=0.5),
    "train": Object(_train, (("green", 44), ("blue", 20), ("red", 18), ("black", 18)), size=0.5),
    "truck": Object(_truck, (("blue", 46), ("white", 28), ("red", 16), ("green", 10)), size=0.5),
    "boat": Object(_boat, (("blue", 50), ("white", 26), ("red", 16), ("green", 8)), size=0.44),
}
