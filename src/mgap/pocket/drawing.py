"""The pen of the pocket world: vector shapes in a unit square, drawn in one of four styles and any colour.

An object's drawing is a function `draw(pen)`. Coordinates run from 0 to 1, x to the right and y down; the object should fill
the square. Paint is named by role: "main" is the object's colour, "dark" and "light" are shades of it, and PAINTS are for parts
of a fixed colour (wheels, eyes, wood). `pen.pick(a, b, c, d)` gives each style its own proportions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from PIL import Image, ImageChops, ImageDraw, ImageFilter

STYLES = ("flat", "outlined", "shaded", "sketch")
TRAINING_STYLES, HELD_OUT_STYLE = STYLES[:3], STYLES[3]
SPRITE = 64  # pixels of a finished drawing
_FINE = 4 * SPRITE  # pixels while drawing; scaled down to smooth the edges

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "orange": (244, 132, 28),
    "yellow": (250, 208, 44),
    "green": (56, 158, 66),
    "blue": (44, 98, 214),
    "purple": (138, 66, 176),
    "pink": (246, 146, 184),
    "brown": (134, 84, 44),
    "black": (44, 44, 48),
    "white": (242, 242, 240),
    "gray": (142, 146, 152),
}

PAINTS: dict[str, tuple[int, int, int]] = {
    "ink": (30, 30, 34),
    "paper": (250, 250, 248),
    "steel": (170, 176, 184),
    "glass": (190, 222, 236),
    "wood": (156, 106, 62),
    "skin": (236, 188, 150),
    "leaf": (70, 150, 70),
    "tyre": (36, 36, 40),
    "lamp": (255, 236, 150),
    "ember": (226, 60, 50),
    "cream": (246, 226, 180),
    "crust": (206, 146, 76),
}

Point = tuple[float, float]
T = TypeVar("T")


class Pen:
    """Draws one object in one style and colour."""

    def __init__(self, style: str, colour: str) -> None:
        self.style = style
        self._index = STYLES.index(style)
        self._main = COLOURS[colour]
        self._image = Image.new("RGBA", (_FINE, _FINE), (0, 0, 0, 0))
        self._draw = ImageDraw.Draw(self._image)

    def pick(self, *values: T) -> T:
        """The value for this style. Give four; if fewer, the last one repeats."""
        return values[min(self._index, len(values) - 1)]

    def polygon(self, points: Sequence[Point], paint: str = "main") -> None:
        scaled = self._scale(points)
        self._draw.polygon(scaled, fill=self._fill(paint))
        self._outline([*scaled, scaled[0]])

    def blob(self, points: Sequence[Point], paint: str = "main") -> None:
        """A closed smooth curve through the points."""
        self.polygon(_smooth(points), paint)

    def ellipse(self, x0: float, y0: float, x1: float, y1: float, paint: str = "main") -> None:
        box = self._box(x0, y0, x1, y1)
        self._draw.ellipse(box, fill=self._fill(paint), outline=self._ink, width=self._width)

    def circle(self, x: float, y: float, radius: float, paint: str = "main") -> None:
        self.ellipse(x - radius, y - radius, x + radius, y + radius, paint)

    def box(self, x0: float, y0: float, x1: float, y1: float, paint: str = "main", radius: float = 0.0) -> None:
        corners = self._box(x0, y0, x1, y1)
        self._draw.rounded_rectangle(corners, radius * _FINE, fill=self._fill(paint), outline=self._ink, width=self._width)

    def line(self, points: Sequence[Point], paint: str = "ink", width: float = 0.04) -> None:
        """A stroke with round ends; it is not outlined."""
        scaled, thick = self._scale(points), max(1, round(width * _FINE))
        self._draw.line(scaled, fill=self._fill(paint), width=thick, joint="curve")
        for x, y in (scaled[0], scaled[-1]):
            self._draw.ellipse((x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2), fill=self._fill(paint))

    def arc(
        self, x0: float, y0: float, x1: float, y1: float, start: float, end: float, paint: str = "ink", width: float = 0.04
    ) -> None:
        """Part of an ellipse's rim; degrees run clockwise from three o'clock."""
        self._draw.arc(self._box(x0, y0, x1, y1), start, end, fill=self._fill(paint), width=max(1, round(width * _FINE)))

    def pie(self, x0: float, y0: float, x1: float, y1: float, start: float, end: float, paint: str = "main") -> None:
        """A filled sector of an ellipse; degrees run clockwise from three o'clock."""
        box = self._box(x0, y0, x1, y1)
        self._draw.pieslice(box, start, end, fill=self._fill(paint), outline=self._ink, width=self._width)

    def finish(self) -> Image.Image:
        """The drawing at its final size, RGBA."""
        image = self._image
        if self.style == "shaded":
            image = _shade(image)
        elif self.style == "sketch":
            image = _hatch(image)
        return image.resize((SPRITE, SPRITE), Image.Resampling.BOX)

    # --- styles -------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return round(self.pick(0.0, 0.022, 0.014, 0.034) * _FINE)

    @property
    def _ink(self) -> tuple[int, int, int] | None:
        return None if self.style == "flat" else PAINTS["ink"]

    def _outline(self, scaled: Sequence[Point]) -> None:
        if self._ink is not None:
            self._draw.line(list(scaled), fill=self._ink, width=self._width, joint="curve")

    def _fill(self, paint: str) -> tuple[int, int, int]:
        if paint == "main":
            return self._main
        if paint == "dark":
            return _mix(self._main, (0, 0, 0), 0.35)
        if paint == "light":
            return _mix(self._main, (255, 255, 255), 0.45)
        return PAINTS[paint]

    def _scale(self, points: Sequence[Point]) -> list[Point]:
        return [(x * (_FINE - 1), y * (_FINE - 1)) for x, y in points]

    def _box(self, x0: float, y0: float, x1: float, y1: float) -> list[float]:
        return [value * (_FINE - 1) for value in (x0, y0, x1, y1)]


@dataclass(frozen=True)
class Object:
    """A kind of object: its drawing, its natural colours with their weights, and its size in a scene."""

    draw: Callable[[Pen], None]
    colours: tuple[tuple[str, int], ...]  # (name, weight), commonest first
    size: float = 0.36  # side of its square as a share of the picture's
    mirrors: bool = True  # off for objects with writing on them

    @property
    def usual_colour(self) -> str:
        return self.colours[0][0]

    def sprite(self, style: str, colour: str) -> Image.Image:
        """The drawing, SPRITE x SPRITE pixels, RGBA."""
        pen = Pen(style, colour)
        self.draw(pen)
        return pen.finish()


def _smooth(points: Sequence[Point], steps: int = 8) -> list[Point]:
    """A closed Catmull-Rom spline."""
    curve: list[Point] = []
    n = len(points)
    for i in range(n):
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = (points[(i + k) % n] for k in (-1, 0, 1, 2))
        for step in range(steps):
            t = step / steps
            w = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, -(t**2) + t**3)
            curve.append(
                (
                    (w[0] * ax + w[1] * bx + w[2] * cx + w[3] * dx) / 2,
                    (w[0] * ay + w[1] * by + w[2] * cy + w[3] * dy) / 2,
                )
            )
    return curve


def _mix(a: tuple[int, int, int], b: tuple[int, int, int], share: float) -> tuple[int, int, int]:
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue


def _shade(image: Image.Image) -> Image.Image:
    """Light from the upper left, and a soft dark rim."""
    colour, alpha = image.convert("RGB"), image.getchannel("A")
    colour = ImageChops.multiply(colour, _slope())
    inner = alpha.filter(ImageFilter.GaussianBlur(_FINE / 24)).point(lambda level: 185 + level * 70 // 255)
    shaded = ImageChops.multiply(colour, Image.merge("RGB", (inner, inner, inner)))
    shaded.putalpha(alpha)
    return shaded


@lru_cache(maxsize=1)
def _slope() -> Image.Image:
    ramp = Image.linear_gradient("L").resize((_FINE, _FINE))  # black above, white below
    level = ImageChops.add(ramp, ramp.rotate(90), scale=2).point(lambda v: 255 - v * 60 // 255)
    return Image.merge("RGB", (level, level, level))


def _hatch(image: Image.Image) -> Image.Image:
    """Pale wash with slanted strokes of the full colour."""
    alpha = image.getchannel("A")
    pale = Image.blend(image.convert("RGB"), Image.new("RGB", image.size, (255, 255, 255)), 0.38)
    hatched = Image.composite(image.convert("RGB"), pale, _strokes())
    hatched.putalpha(alpha)
    return hatched


@lru_cache(maxsize=1)
def _strokes() -> Image.Image:
    mask = Image.new("L", (_FINE, _FINE), 0)
    draw = ImageDraw.Draw(mask)
    for x in range(-_FINE, _FINE, 26):
        draw.line([(x, _FINE), (x + _FINE, 0)], fill=255, width=11)
    return mask
