"""Kitchen objects of the pocket world: tableware and two large appliances."""

from __future__ import annotations

from math import cos, radians, sin

from mgap.pocket.drawing import Object, Pen, Point


def _both(side: list[Point]) -> list[Point]:
    """The symmetric closed outline with this right half: distances from the middle, from the top down."""
    return [(0.5 + x, y) for x, y in side] + [(0.5 - x, y) for x, y in side[::-1]]


def _bottle(pen: Pen) -> None:
    """A round body, sloping shoulders, a narrow neck with a cap, and a label."""
    half, neck, top = pen.pick((0.2, 0.075, 0.42), (0.22, 0.075, 0.38), (0.19, 0.07, 0.46), (0.24, 0.085, 0.5))
    shoulder = [(neck, 0.1), (neck, top - 0.14), (half - 0.04, top - 0.03), (half, top + 0.05)]
    pen.polygon(_both([*shoulder, (half, 0.93), (half - 0.05, 0.97)]))
    pen.box(0.5 - neck - 0.025, 0.03, 0.5 + neck + 0.025, 0.14, pen.pick("wood", "ember", "steel", "ink"))
    if pen.style == "sketch":
        pen.ellipse(0.5 - half * 0.7, 0.59, 0.5 + half * 0.7, 0.87, "cream")
    else:
        pen.box(0.5 - half, 0.58, 0.5 + half, pen.pick(0.78, 0.82, 0.76), "cream")
        pen.line([(0.42, 0.68), (0.58, 0.68)], "main", 0.05)
    pen.line([(0.57 - half, 0.53), (0.57 - half, top + 0.07)], "light", 0.05)


def _wine_glass(pen: Pen) -> None:
    """A half-filled bowl on a thin stem and a flat foot; the sketch flares open like a tulip."""
    rim, wide, deep, level = pen.pick(
        (0.21, 0.29, 0.57, 0.24), (0.25, 0.31, 0.52, 0.22), (0.19, 0.27, 0.6, 0.28), (0.36, 0.27, 0.56, 0.18)
    )
    pen.box(0.455, deep - 0.06, 0.545, 0.93)
    pen.blob([(0.22, 0.95), (0.34, 0.9), (0.5, 0.87), (0.66, 0.9), (0.78, 0.95), (0.5, 0.97)])
    turns = [radians(15 * k) for k in range(7)]
    upper = [(rim + (wide - rim) * sin(turn), 0.03 + (level - 0.03) * turn / turns[-1]) for turn in turns]
    pen.polygon(_both(upper + [(wide * cos(turn), level + (deep - level) * sin(turn)) for turn in turns[1:]]), "glass")
    edge, depth = wide - 0.035, deep - level - 0.04
    pen.pie(0.5 - edge, level - depth, 0.5 + edge, level + depth, 0, 180)
    pen.ellipse(0.5 - edge, level - 0.045, 0.5 + edge, level + 0.045, "dark")


def _handle(pen: Pen, x0: float, y0: float, x1: float, y1: float, width: float) -> None:
    """A ring of the main colour, open in the middle."""
    if rim := pen.pick(0.0, 0.022, 0.014, 0.034):
        pen.arc(x0, y0, x1, y1, 0, 360, "ink", width)
    pen.arc(x0 + rim, y0 + rim, x1 - rim, y1 - rim, 0, 360, "main", width - 2 * rim)


def _cup(pen: Pen) -> None:
    """A mug with a ring for a handle and a drink in it; the sketch is a round tea cup on a saucer."""
    if pen.style == "sketch":
        pen.ellipse(0.04, 0.8, 0.88, 0.97, "light")
        _handle(pen, 0.62, 0.28, 0.97, 0.66, 0.13)
        pen.blob([(0.1, 0.25), (0.77, 0.25), (0.76, 0.58), (0.6, 0.84), (0.28, 0.84), (0.11, 0.58)])
        pen.ellipse(0.05, 0.12, 0.82, 0.36, "light")
        pen.ellipse(0.12, 0.17, 0.75, 0.34, "wood")
        return
    x0, x1, ring = pen.pick((0.07, 0.71, 0.55), (0.29, 0.93, 0.05), (0.07, 0.71, 0.55))
    _handle(pen, ring, 0.32, ring + 0.4, 0.76, 0.11)
    taper = pen.pick(0.0, 0.06, 0.03)
    left, right = x0 + taper, x1 - taper
    pen.polygon([(x0, 0.18), (x1, 0.18), (right, 0.9), (right - 0.06, 0.96), (left + 0.06, 0.96), (left, 0.9)])
    pen.ellipse(x0, 0.07, x1, 0.29, "light")
    pen.ellipse(x0 + 0.06, 0.12, x1 - 0.06, 0.27, "wood")
    if pen.style == "outlined":
        pen.polygon([(x0 + 0.03, 0.54), (x1 - 0.03, 0.54), (x1 - 0.04, 0.68), (x0 + 0.04, 0.68)], "dark")
    else:
        pen.line([(x0 + 0.13, 0.45), (x0 + 0.13, 0.75)], "light", 0.06)


def _fork(pen: Pen) -> None:
    """Tines above, a curved root and a long handle, in one piece; the sketch has three tines and a broad handle."""
    tines, tine, gap, root = pen.pick(
        (4, 0.06, 0.055, 0.32), (3, 0.085, 0.07, 0.34), (4, 0.07, 0.055, 0.3), (3, 0.09, 0.085, 0.36)
    )
    half, low = (tines * tine + (tines - 1) * gap) / 2, pen.pick(0.065, 0.06, 0.07, 0.095)
    teeth: list[Point] = []
    for k in range(tines):
        x = 0.5 - half + k * (tine + gap)
        teeth += [(x, root - 0.04), (x + 0.01, 0.05), (x + tine / 2, 0.03), (x + tine - 0.01, 0.05), (x + tine, root - 0.04)]
    neck = [(half, root + 0.03), (half - 0.04, root + 0.1), (0.06, root + 0.17), (0.045, root + 0.22)]
    shaft = _both([*neck, (low, 0.9), (low - 0.03, 0.97)])
    pen.polygon([*teeth, *shaft])
    pen.line([(0.5, 0.72), (0.5, 0.88)], "dark", 0.04)


def _knife(pen: Pen) -> None:
    """A broad pointed blade at a slant with a riveted handle; the sketch is a slim one that slants the other way."""
    handle = [(0.04, 0.82), (0.18, 0.96), (0.45, 0.69), (0.31, 0.55)]
    blade = pen.pick(
        [(0.26, 0.6), (0.86, 0.05), (0.95, 0.04), (0.94, 0.18), (0.84, 0.42), (0.66, 0.66), (0.54, 0.78), (0.46, 0.8)],
        [(0.26, 0.6), (0.78, 0.08), (0.95, 0.04), (0.93, 0.28), (0.82, 0.48), (0.66, 0.68), (0.52, 0.82), (0.44, 0.78)],
        [(0.28, 0.58), (0.88, 0.06), (0.96, 0.04), (0.92, 0.22), (0.8, 0.46), (0.64, 0.66), (0.5, 0.78), (0.44, 0.74)],
        [(0.27, 0.59), (0.95, 0.04), (0.96, 0.12), (0.9, 0.32), (0.78, 0.48), (0.52, 0.74), (0.48, 0.76)],
    )
    if pen.style == "sketch":
        handle, blade = [(1 - x, y) for x, y in handle], [(1 - x, y) for x, y in blade]
    pen.polygon(blade)
    if pen.style != "sketch":
        pen.line([(0.52, 0.7), (0.72, 0.5), (0.87, 0.22)], "light", 0.05)
    pen.polygon(handle, pen.pick("wood", "ink", "wood", "ink"))
    for x, y in ((0.15, 0.85), (0.25, 0.75), (0.35, 0.65))[:: pen.pick(1, 1, 1, 2)]:
        spot = (pen.pick(x, x, x, 1 - x), y)
        pen.line([spot, spot], "cream", 0.05)


def _bowl(pen: Pen) -> None:
    """A wide half-round on a foot with a broad open rim; some hold food."""
    foot, depth = pen.pick((0.2, 0.92), (0.17, 0.9), (0.23, 0.93), (0.15, 0.92))
    pen.polygon([(0.5 - foot, 0.84), (0.5 + foot, 0.84), (0.5 + foot + 0.03, 0.97), (0.5 - foot - 0.03, 0.97)], "dark")
    pen.pie(0.03, 0.38 - (depth - 0.38), 0.97, depth, 0, 180)
    pen.ellipse(0.03, 0.25, 0.97, 0.51, "light")
    pen.ellipse(0.1, 0.29, 0.9, 0.48, "dark")
    if pen.style == "shaded":
        pen.blob([(0.14, 0.4), (0.3, 0.22), (0.5, 0.15), (0.7, 0.22), (0.86, 0.4), (0.5, 0.48)], "cream")
    elif pen.style == "sketch":
        pen.ellipse(0.14, 0.32, 0.86, 0.48, "cream")
        for x in (0.34, 0.52, 0.7):
            pen.line([(x, 0.22), (x - 0.04, 0.16), (x + 0.02, 0.1), (x - 0.02, 0.04)], "steel", 0.045)
    if stripe := pen.pick(0.0, 0.6, 0.0, 0.62):
        for x in (0.2, 0.35, 0.5, 0.65, 0.8):
            y = stripe + 0.05 - abs(x - 0.5) * 0.25
            pen.line([(x, y), (x, y)], "dark", 0.08)


def _bar(pen: Pen, x0: float, y0: float, x1: float, y1: float) -> None:
    """A bright bar with a dark edge: a handle that shows on any colour."""
    pen.line([(x0, y0), (x1, y1)], "ink", 0.075)
    pen.line([(x0, y0), (x1, y1)], "steel", 0.035)


def _oven(pen: Pen) -> None:
    """A cooker: hob with burners, a row of knobs, and a door with a bar and a window; the sketch carries a pot."""
    top, low = pen.pick((0.2, 0.82), (0.16, 0.86), (0.2, 0.8), (0.28, 0.85))
    if pen.style == "sketch":
        pen.box(0.2, 0.13, 0.62, 0.29, "steel", 0.03)
        pen.box(0.14, 0.1, 0.68, 0.16, "ink", 0.03)
        pen.box(0.35, 0.04, 0.47, 0.11, "ink", 0.03)
    else:
        pen.box(0.07, 0.04, 0.93, top, "dark", 0.02)
        for x in (0.2, 0.58):
            pen.box(x, top - 0.05, x + 0.22, top + 0.02, "ink")
    for x in (0.1, 0.78):
        pen.box(x, 0.92, x + 0.12, 0.98, "ink")
    pen.box(0.06, top, 0.94, 0.94, "main", 0.03)
    for k in range(knobs := pen.pick(4, 5, 3, 3)):
        x, y = 0.18 + 0.64 * k / (knobs - 1), top + 0.1
        pen.line([(x, y), (x, y)], "ink", 0.1)
        pen.line([(x, y), (x, y)], "steel", 0.045)
    _bar(pen, 0.2, top + 0.22, 0.8, top + 0.22)
    pen.box(0.18, top + 0.3, 0.82, low, "ink", pen.pick(0.03, 0.06, 0.03, 0.0))
    pen.box(0.23, top + 0.35, 0.77, low - 0.05, pen.pick("ember", "lamp", "ember", "lamp"))
    for share in pen.pick((0.5,), (0.33, 0.67), (0.5,), (0.5,)):
        y = top + 0.35 + share * (low - top - 0.4)
        pen.line([(0.25, y), (0.75, y)], "ink", 0.035)


def _refrigerator(pen: Pen) -> None:
    """A tall box with a small door over a large one; the sketch has two doors side by side over a drawer."""
    x0, x1 = pen.pick((0.22, 0.78), (0.2, 0.8), (0.24, 0.76), (0.15, 0.85))
    for x in (x0 + 0.04, x1 - 0.14):
        pen.box(x, 0.92, x + 0.1, 0.98, "ink")
    pen.box(x0, 0.03, x1, 0.94, "main", 0.05)
    if pen.style == "sketch":
        pen.box(x0, 0.03, 0.5, 0.66, "main", 0.05)
        pen.box(0.5, 0.03, x1, 0.66, "main", 0.05)
        for x in (0.42, 0.58):
            _bar(pen, x, 0.3, x, 0.56)
        _bar(pen, 0.36, 0.77, 0.64, 0.77)
        pen.box(x0 + 0.06, 0.13, 0.34, 0.32, "glass")
        return
    split = pen.pick(0.34, 0.6, 0.3)
    pen.line([(x0 + 0.03, split), (x1 - 0.03, split)], "dark", 0.05)
    x = pen.pick(x1 - 0.1, x0 + 0.1, x1 - 0.1)
    for y0, y1 in ((split - 0.18, split - 0.08), (split + 0.09, split + pen.pick(0.3, 0.22, 0.34))):
        _bar(pen, x, y0, x, y1)


KITCHEN: dict[str, Object] = {
    "bottle": Object(_bottle, (("green", 60), ("brown", 20), ("blue", 12), ("white", 8)), size=0.32),
    "wine glass": Object(_wine_glass, (("red", 70), ("yellow", 20), ("pink", 10)), size=0.32),
    "cup": Object(_cup, (("white", 60), ("blue", 18), ("red", 14), ("black", 8)), size=0.26),
    "fork": Object(_fork, (("gray", 90), ("white", 6), ("black", 4)), size=0.26),
    "knife": Object(_knife, (("gray", 92), ("black", 5), ("white", 3)), size=0.28),
    "bowl": Object(_bowl, (("white", 60), ("blue", 25), ("brown", 15)), size=0.3),
    "oven": Object(_oven, (("white", 60), ("black", 25), ("gray", 15)), size=0.44),
    "refrigerator": Object(_refrigerator, (("white", 62), ("gray", 30), ("black", 8)), size=0.5),
}
