"""Outdoor objects of the pocket world: people, street furniture, sports gear and luggage."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, radians, sin

from mgap.pocket.drawing import Object, Pen, Point

Points = tuple[Point, ...]


def _turn(points: Sequence[Point], degrees: float, centre: Point = (0.5, 0.5)) -> list[Point]:
    """The points turned clockwise about a centre."""
    (cx, cy), c, s = centre, cos(radians(degrees)), sin(radians(degrees))
    return [(cx + c * (x - cx) - s * (y - cy), cy + s * (x - cx) + c * (y - cy)) for x, y in points]


def _block(x: float, y: float, wide: float, high: float) -> list[Point]:
    """A rectangle about its middle, given half its width and height."""
    return [(x - wide, y - high), (x + wide, y - high), (x + wide, y + high), (x - wide, y + high)]


def _rod(pen: Pen, points: Sequence[Point], paint: str, width: float) -> None:
    """A thick stroke with the outline of its style."""
    pen.line(points, paint if pen.style == "flat" else "ink", width + 2 * pen.pick(0.0, 0.018, 0.012, 0.026))
    pen.line(points, paint, width)


def _person(pen: Pen) -> None:
    """Arms hanging, waving, in a dress, or striding with a cap."""
    elbows: Points = pen.pick(
        ((0.25, 0.46), (0.75, 0.46)), ((0.24, 0.46), (0.82, 0.36)), ((0.26, 0.44), (0.74, 0.44)), ((0.2, 0.36), (0.78, 0.52))
    )
    hands: Points = pen.pick(
        ((0.2, 0.58), (0.8, 0.58)), ((0.2, 0.58), (0.87, 0.2)), ((0.17, 0.54), (0.83, 0.54)), ((0.1, 0.2), (0.9, 0.5))
    )
    for side, elbow, hand in zip((-1, 1), elbows, hands, strict=True):
        foot = 0.5 + side * pen.pick(0.11, 0.13, 0.09, 0.2)
        _rod(pen, [(0.5 + side * 0.09, 0.6), (foot, 0.91)], pen.pick("dark", "dark", "skin", "dark"), 0.13)
        _rod(pen, [(foot, 0.935), (foot + pen.pick(side, side, side, 1) * 0.06, 0.935)], "ink", 0.07)
        _rod(pen, [(0.5 + side * 0.14, 0.36), elbow, hand], "main", 0.11)
        pen.circle(*hand, 0.065, "skin")
    if pen.style == "shaded":
        pen.box(0.35, 0.06, 0.65, 0.36, "wood", 0.12)
    hem, flare = pen.pick((0.66, 0.16), (0.64, 0.17), (0.78, 0.27), (0.64, 0.15))
    pen.polygon([(0.38, 0.3), (0.62, 0.3), (0.68, 0.36), (0.5 + flare, hem), (0.5 - flare, hem), (0.32, 0.36)])
    pen.circle(0.5, 0.17, 0.135, "skin")
    pen.pie(0.35, 0.02, 0.65, 0.28, 180, 360, pen.pick("wood", "ink", "wood", "main"))
    if pen.pick(False, False, False, True):
        pen.box(0.35, 0.11, 0.77, 0.16, "dark", 0.02)
    for x in (0.45, 0.55):
        pen.circle(x, 0.195, 0.017, "ink")


def _traffic_light(pen: Pen) -> None:
    """Three lamps in a housing, with side fins or with hoods."""
    pen.box(0.45, 0.8, 0.55, 0.98, "steel")
    fins, half = pen.pick(True, False, True, False), pen.pick(0.21, 0.23, 0.21, 0.26)
    lamps = ((0.185, "ember"), (0.445, "lamp"), (0.705, "leaf"))
    for y, _ in lamps if fins else ():
        for edge, tip in ((0.53 - half, 0.1), (0.47 + half, 0.9)):
            pen.polygon([(edge, y - 0.1), (tip, y - 0.1), (edge, y + 0.09)], "dark")
    pen.box(0.5 - half, 0.03, 0.5 + half, 0.86, "main", pen.pick(0.08, 0.03, 0.08, 0.22))
    for y, lamp in lamps:
        if pen.pick(False, True, False, False):
            pen.pie(0.35, y - 0.14, 0.65, y + 0.16, 180, 360, "dark")
        pen.circle(0.5, y, pen.pick(0.12, 0.115, 0.115, 0.125), "ink")
        pen.circle(0.5, y, pen.pick(0.1, 0.105, 0.1, 0.125), lamp)


def _hydrant(pen: Pen) -> None:
    drop, dome, foot, sides = pen.pick(
        (0.0, 0.08, 0.3, 20), (0.04, 0.1, 0.26, 20), (0.0, 0.07, 0.32, 20), (0.02, 0.06, 0.36, 6)
    )
    pen.box(0.44, 0.03, 0.56, 0.15, "dark")
    pen.pie(0.28, dome, 0.72, 0.62 - dome, 180, 360)
    pen.box(0.1, 0.44 + drop, 0.9, 0.6 + drop)
    for x in (0.06, 0.83):
        pen.box(x, 0.41 + drop, x + 0.11, 0.63 + drop, "dark", 0.02)
    pen.box(0.3, 0.34, 0.7, 0.88)
    pen.box(0.22, 0.28, 0.78, 0.38, "dark", 0.03)
    for size, paint in ((0.14, "light"), (0.055, "dark")):
        pen.polygon([_turn([(0.5, 0.56 + drop - size)], 360 * k / sides, (0.5, 0.56 + drop))[0] for k in range(sides)], paint)
    pen.box(0.5 - foot, 0.86, 0.5 + foot, 0.97, "dark", 0.02)


_LETTERS: tuple[Points, ...] = (  # S T T O P, as strokes in a unit cell
    ((1, 0.08), (0.75, 0), (0.2, 0), (0, 0.2), (0.15, 0.45), (0.85, 0.55), (1, 0.8), (0.8, 1), (0.25, 1), (0, 0.92)),
    ((0, 0), (1, 0)),
    ((0.5, 0), (0.5, 1)),
    ((0.5, 0), (0.15, 0.15), (0, 0.5), (0.15, 0.85), (0.5, 1), (0.85, 0.85), (1, 0.5), (0.85, 0.15), (0.5, 0)),
    ((0, 1), (0, 0), (0.7, 0), (1, 0.15), (1, 0.4), (0.7, 0.55), (0, 0.55)),
)


def _stop_sign(pen: Pen) -> None:
    tilt, middle = pen.pick(0, 0, 0, -9), (0.5, 0.43)
    pen.polygon(_turn(_block(0.5, 0.79, 0.04, 0.19), tilt, middle), "steel")
    for radius, paint in ((0.43, pen.pick("paper", "main", "paper", "main")), (pen.pick(0.38, 0.43, 0.38, 0.43), "main")):
        pen.polygon([_turn([(0.5, 0.43 - radius)], tilt + k * 45 + 22.5, middle)[0] for k in range(8)], paint)
    wide, high = pen.pick(0.105, 0.11, 0.105, 0.12), pen.pick(0.22, 0.26, 0.2, 0.3)
    for paint, width in (("dark", 0.085), ("paper", 0.05)):
        for strokes, column in zip(_LETTERS, (0, 1, 1, 2, 3), strict=True):
            x0, y0 = 0.5 - wide / 2 + (column - 1.5) * (wide + 0.068), 0.43 - high / 2
            pen.line(_turn([(x0 + x * wide, y0 + y * high) for x, y in strokes], tilt, middle), paint, width)


def _bench(pen: Pen) -> None:
    top = pen.pick(0.2, 0.14, 0.2, 0.16)
    for x in (0.16, 0.84):
        pen.box(x - 0.04, top - 0.02, x + 0.04, 0.8, "steel")
    if pen.pick(True, True, True, False):
        pitch = pen.pick(0.165, 0.13, 0.165)
        for k in range(pen.pick(2, 3, 2)):
            pen.box(0.05, top + k * pitch, 0.95, top + (k + 0.76) * pitch, "main", 0.02)
    else:
        for k in range(6):
            pen.box(0.1 + k * 0.14, 0.24, 0.18 + k * 0.14, 0.56)
        pen.box(0.05, 0.14, 0.95, 0.27, "main", 0.04)
    pen.polygon([(0.09, 0.55), (0.91, 0.55), (0.97, 0.68), (0.03, 0.68)])
    pen.box(0.03, 0.67, 0.97, 0.75, "dark")
    for x in (0.07, 0.93):
        pen.box(x - 0.04, 0.74, x + 0.04, 0.92, "steel")
        if pen.pick(False, True, False, True):
            _rod(pen, [(x, 0.7), (x, 0.46), (0.5 + (x - 0.5) * 0.86, 0.44)], "steel", 0.055)


def _umbrella(pen: Pen) -> None:
    lean, bend, ribs, radius = pen.pick((0, 1, 4, 0.46), (0, -1, 5, 0.46), (-14, 1, 3, 0.44), (24, -1, 4, 0.43))
    hook = [(0.5 + bend * 0.09 * (1 - cos(t * pi / 6)), 0.84 + 0.1 * sin(t * pi / 6)) for t in range(7)]
    _rod(pen, _turn([(0.5, 0.06), (0.5, 0.84)], lean), "steel", 0.045)
    _rod(pen, _turn([(0.5, 0.76), *hook], lean), "wood", 0.06)

    def rib(k: int) -> list[Point]:
        return [(0.5 + (2 * k / ribs - 1) * radius * sin(t * pi / 16), 0.54 - radius * cos(t * pi / 16)) for t in range(9)]

    for k in range(ribs):
        hem = [(rib(k + 1)[-1][0] - radius * t / 4 / ribs, 0.54 - 0.07 * sin(t * pi / 8)) for t in range(1, 8)]
        pen.polygon(_turn([*rib(k + 1), *hem, *reversed(rib(k))], lean), "dark" if k % 2 == pen.pick(1, 2, 1, 0) else "main")


def _kite(pen: Pen) -> None:
    flip = pen.pick(1, 1, 1, -1)

    def place(*points: Point) -> list[Point]:
        return [(0.5 + flip * (x - 0.5), y) for x, y in points]

    tail = [(0.27, 0.69), (0.17, 0.77), (0.13, 0.85), (0.2, 0.92), (0.33, 0.91), (0.48, 0.86), (0.62, 0.83), (0.75, 0.86)]
    pen.line(place(*tail[: pen.pick(8, 8, 6, 8)]), "ink", 0.035)
    for x, y in [tail[k] for k in pen.pick((2, 4, 6), (2, 5), (2, 4), (3, 6))]:
        for side in (-1, 1):
            pen.polygon(place((x, y), (x + side * 0.1, y - 0.075), (x + side * 0.1, y + 0.075)), pen.pick("main", "dark"))
    nose, end, centre, reach = (0.88, 0.05), (0.26, 0.7), (0.67, 0.27), pen.pick(0.23, 0.2, 0.225, 0.23)
    left, right = (centre[0] - reach, centre[1] - reach), (centre[0] + reach, centre[1] + reach)
    paints = pen.pick(("main", "dark", "main", "light"), ("main", "light", "main", "main"), ("main", "light"), ("dark", "main"))
    for k, (a, b) in enumerate(((nose, left), (left, end), (end, right), (right, nose))):
        pen.polygon(place(a, b, centre), paints[k % len(paints)])
    for spar in ((nose, end), (left, right)):
        pen.line(place(*spar), pen.pick("paper", "wood", "paper"), 0.03)


def _skis(pen: Pen) -> None:
    """A pair of skis and a pair of poles: upright, crossed, splayed, or skis across poles."""
    skis: Points = pen.pick(((0.39, 0), (0.61, 0)), ((0.5, -24), (0.5, 24)), ((0.37, -5), (0.63, 5)), ((0.4, 32), (0.61, 32)))
    poles: Points = pen.pick(((0.14, 0), (0.86, 0)), ((0.11, 0), (0.89, 0)), ((0.13, -5), (0.87, 5)), ((0.4, -42), (0.6, -42)))
    for x, lean in poles:
        pen.line(_turn([(x, 0.12), (x, 0.95)], lean, (x, 0.5)), "ink", 0.04)
        _rod(pen, _turn([(x, 0.08), (x, 0.2)], lean, (x, 0.5)), "dark", 0.075)
        _rod(pen, _turn([(x - 0.05, 0.85), (x + 0.05, 0.85)], lean, (x, 0.5)), "steel", 0.045)
    for x, lean in skis:
        tip = [(x - 0.078, 0.17), (x - 0.06, 0.08), (x, 0.02), (x + 0.06, 0.08), (x + 0.078, 0.17)]
        tail = [(x + 0.062, 0.5), (x + 0.078, 0.97), (x - 0.078, 0.97), (x - 0.062, 0.5)]
        pen.polygon(_turn([*tip, *tail], lean, (x, 0.5)))
        pen.line(_turn([(x, 0.15), (x, pen.pick(0.3, 0.26, 0.34, 0.22))], lean, (x, 0.5)), "light", 0.05)
        pen.polygon(_turn(_block(x, 0.59, 0.06, 0.09), lean, (x, 0.5)), "ink")
        pen.line(_turn([(x - 0.04, 0.57), (x + 0.04, 0.57)], lean, (x, 0.5)), "steel", 0.05)


def _snowboard(pen: Pen) -> None:
    """A broad board, round at both ends, with two bindings across it."""
    lean, reach = pen.pick(45, 52, 38, -45), pen.pick(0.43, 0.41, 0.4, 0.42)
    half, waist = pen.pick(0.16, 0.15, 0.17, 0.17), pen.pick(0.13, 0.12, 0.14, 0.12)

    def end(way: int) -> list[Point]:
        return [(0.5 - way * half * cos(t * pi / 8), 0.5 - way * (reach + half * sin(t * pi / 8))) for t in range(9)]

    pen.polygon(_turn([*end(1), (0.5 + waist, 0.5), *end(-1), (0.5 - waist, 0.5)], lean))
    wide, near, far = pen.pick((0.0, 0.32, 0.48), (0.06, 0.41, 0.41), (0.0, 0.32, 0.46), (0.06, 0.34, 0.48))
    for way in (-1, 1):
        stripe = [(0.5 - wide, 0.5 + way * near), (0.5 + wide, 0.5 + way * far)]
        pen.line(_turn(stripe, lean), pen.pick("light", "light", "dark", "light"), pen.pick(0.1, 0.09, 0.13, 0.1))
        y, splay = 0.5 + way * pen.pick(0.19, 0.18, 0.19, 0.2), way * pen.pick(10, 15, 10, 18)
        pen.polygon(_turn(_turn(_block(0.5, y, 0.17, 0.06), splay, (0.5, y)), lean), "ink")
        for x in (0.44, 0.56):
            pen.line(_turn(_turn([(x, y - 0.05), (x, y + 0.05)], splay, (0.5, y)), lean), "steel", 0.045)


def _surfboard(pen: Pen) -> None:
    """A long leaf with a pointed nose: stuck in sand, or loose with fins and a leash."""
    lean, half, flip, sand = pen.pick((14, 0.18, 1, False), (6, 0.18, 1, True), (-12, 0.19, -1, False), (20, 0.2, 1, True))
    cord = ((0.5, 0.9), (0.62, 0.95), (0.74, 0.93), (0.8, 0.86), (0.75, 0.8), (0.7, 0.85), (0.78, 0.94), (0.9, 0.93))
    if not sand:
        pen.line([(0.5 + flip * (x - 0.5), y) for x, y in cord], "ink", 0.035)
    rail = ((0, 0.02), (0.32, 0.09), (0.66, 0.2), (0.92, 0.34), (1, 0.5), (0.93, 0.68), (0.74, 0.84), (0.45, 0.96))
    pen.polygon(_turn([(0.5 + half * x, y) for x, y in rail] + [(0.5 - half * x, y) for x, y in rail[:0:-1]], lean))
    pen.line(_turn([(0.5, 0.09), (0.5, 0.72)], lean), "dark", 0.03)
    for y in pen.pick((0.36,), (0.36, 0.56), (0.58,), (0.42,)):
        pen.polygon(_turn(_block(0.5, y, half - 0.025, pen.pick(0.05, 0.04, 0.05, 0.07)), lean), "light")
    if sand:
        heap = [(0.05, 0.97), (0.16, 0.87), (0.34, 0.84), (0.46, 0.79), (0.62, 0.83), (0.8, 0.87), (0.95, 0.97)]
        pen.polygon(heap, pen.pick("cream", "cream", "cream", "crust"))
    for x, y in () if sand else ((-1, 0.76), (1, 0.76), (0, 0.82)):
        pen.line(_turn([(0.5 + x * 0.06, y - 0.04), (0.5 + x * 0.1, y + 0.06)], lean), "ink", 0.045)


def _sports_ball(pen: Pen) -> None:
    """A football, or in one style a basketball; its marks carry a pale rim so that they show on black as well."""
    pen.circle(0.5, 0.5, 0.46)
    spin, cx, cy = pen.pick((0, 0.5, 0.5), (0, 0.5, 0.5), (36, 0.5, 0.5), (20, 0.42, 0.44))

    def seam(*points: Point) -> None:
        for paint, width in (("paper", 0.075), ("ink", 0.04)):
            pen.line(points, paint, width)

    def ring(radius: float, degrees: float) -> Point:
        x, y = cx + radius * sin(radians(degrees + spin)) - 0.5, cy - radius * cos(radians(degrees + spin)) - 0.5
        inside = min(1.0, 0.43 / max(0.01, (x * x + y * y) ** 0.5))
        return 0.5 + inside * x, 0.5 + inside * y

    if pen.style == "outlined":
        for way in (-1, 1):
            seam(*((0.5 + way * (0.17 + 0.15 * (1 - cos(t * pi / 12))), 0.5 + 0.066 * t) for t in range(-5, 6)))
        seam((0.1, 0.5), (0.9, 0.5))
        seam((0.5, 0.1), (0.5, 0.9))
        return
    turns, near, far = range(0, 360, 72), pen.pick(0.18, 0.18, 0.18, 0.2), pen.pick(0.44, 0.44, 0.44, 0.52)
    for k in turns:
        seam(ring(0.17, k), ring(0.33, k))
        seam(*(ring(r, k + a) for r, a in ((0.33, 0), (0.36, 36), (0.33, 72))[: pen.pick(3, 3, 3, 1)]))
    corners = ((0.3, 0), (0.37, 18), (far, 16), (far, 0), (far, -16), (0.37, -18))
    for patch in ([ring(near, k) for k in turns], *([ring(r, k + a) for r, a in corners] for k in turns)):
        pen.line([*patch, *patch[:2]], "paper", 0.05)
        pen.polygon(patch, "ink")


def _backpack(pen: Pen) -> None:
    """A round one with zips, or one with a lid and buckles."""
    tall = pen.pick(0.56, 0.6, 0.58, 0.62)
    _rod(pen, [(0.38, 0.16), (0.4, 0.06), (0.6, 0.06), (0.62, 0.16)], "dark", 0.055)
    pen.box(0.04, tall - 0.06, 0.96, 0.9, "dark", 0.06)
    pen.box(0.15, 0.1, 0.85, 0.96, "main", pen.pick(0.26, 0.16, 0.3, 0.12))
    pen.box(0.25, tall, 0.75, 0.89, "light", pen.pick(0.08, 0.04, 0.1, 0.14))
    if pen.pick(False, True, False, True):
        pen.box(0.11, 0.12, 0.89, pen.pick(0.48, 0.48, 0.48, 0.42), "dark", 0.1)
        for x in pen.pick((0.34, 0.66), (0.34, 0.66), (0.5,), (0.5,)):
            pen.box(x - 0.045, 0.4, x + 0.045, 0.7, "wood")
            pen.box(x - 0.06, 0.55, x + 0.06, 0.64, "steel")
    else:
        pen.arc(0.25, 0.2, 0.75, 0.72, 190, 350, "steel", 0.035)
        pen.line([(0.32, tall + 0.09), (0.66, tall + 0.09), (0.66, tall + 0.17)], "ink", 0.04)


def _suitcase(pen: Pen) -> None:
    """A trolley case with a long handle, or an old case with belts and a grip."""
    if pen.pick(True, False, True, False):
        half, top = pen.pick((0.33, 0.26), (0.33, 0.26), (0.3, 0.3))
        _rod(pen, [(0.36, top + 0.02), (0.36, 0.07), (0.64, 0.07), (0.64, top + 0.02)], "steel", 0.05)
        _rod(pen, [(0.4, 0.07), (0.6, 0.07)], "ink", 0.07)
        for x in (0.6 - half, 0.4 + half):
            pen.circle(x, 0.91, 0.06, "tyre")
        pen.box(0.5 - half, top, 0.5 + half, 0.9, "main", 0.07)
        for x in pen.pick((0.34, 0.5, 0.66), (), (0.4, 0.6)):
            pen.line([(x, top + 0.1), (x, 0.8)], "dark", 0.05)
        return
    top, belts, seam = pen.pick(*[(0.25, (0.24, 0.76), "main")] * 3, (0.3, (0.2, 0.8), "dark"))
    _rod(pen, [(0.36, 0.34), (0.37, top - 0.12), (0.63, top - 0.12), (0.64, 0.34)], "wood", 0.07)
    pen.box(0.03, top, 0.97, 0.92, "main", pen.pick(0, 0.08, 0, 0.14))
    pen.line([(0.1, 0.53), (0.9, 0.53)], seam, 0.07)
    for x in belts:
        pen.box(x - 0.055, top, x + 0.055, 0.92, "wood")
        pen.box(x - 0.075, 0.43, x + 0.075, 0.55, "lamp")


OUTDOORS: dict[str, Object] = {
    "person": Object(_person, (("blue", 45), ("red", 20), ("black", 15), ("white", 10), ("green", 10)), size=0.42),
    "traffic light": Object(_traffic_light, (("black", 75), ("yellow", 20), ("green", 5)), size=0.36),
    "fire hydrant": Object(_hydrant, (("red", 70), ("yellow", 25), ("blue", 5)), size=0.32),
    "stop sign": Object(_stop_sign, (("red", 97), ("blue", 3)), size=0.36, mirrors=False),
    "bench": Object(_bench, (("brown", 75), ("green", 15), ("gray", 10)), size=0.44),
    "umbrella": Object(_umbrella, (("red", 40), ("black", 25), ("blue", 20), ("yellow", 15)), size=0.38),
    "kite": Object(_kite, (("purple", 40), ("red", 25), ("yellow", 20), ("green", 15)), size=0.34),
    "skis": Object(_skis, (("orange", 45), ("blue", 25), ("red", 20), ("white", 10)), size=0.4),
    "snowboard": Object(_snowboard, (("green", 45), ("purple", 30), ("blue", 25)), size=0.36),
    "surfboard": Object(_surfboard, (("yellow", 50), ("white", 30), ("blue", 20)), size=0.42),
    "sports ball": Object(_sports_ball, (("white", 75), ("orange", 20), ("yellow", 5)), size=0.26),
    "backpack": Object(_backpack, (("blue", 45), ("black", 30), ("red", 15), ("green", 10)), size=0.32),
    "suitcase": Object(_suitcase, (("gray", 45), ("black", 30), ("blue", 15), ("red", 10)), size=0.34),
}
