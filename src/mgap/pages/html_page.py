"""Self-contained HTML pages from plain data. The template engine escapes all text."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from mgap.benchmarks.statistics import Rate
from mgap.types import Step

_INVISIBLE = {"": "\u2205", " ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}


@dataclass(frozen=True)
class PagePicture:
    """A picture embedded in the page, with its alt text."""

    source: str  # a data: URL
    alt: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Image.Image, alt: str) -> PagePicture:
        file = io.BytesIO()
        image.save(file, format="PNG", optimize=True)
        source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return cls(source, alt, image.width, image.height)

    @classmethod
    def thumbnail(cls, image: Image.Image, alt: str, side: int) -> PagePicture:
        """The picture at no more than `side` pixels a side, as PNG or JPEG, whichever is smaller."""
        small = image.copy()
        small.thumbnail((side, side))
        png, file = cls.of(small, alt), io.BytesIO()
        small.save(file, format="JPEG", quality=80, optimize=True)
        source = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
        return cls(min(png.source, source, key=len), alt, small.width, small.height)


@dataclass(frozen=True)
class PageToken:
    """A token of an answer with a number below it, coloured by `shade` (0..1); `instead` is the plain choice, if another."""

    text: str
    number: str
    shade: float
    note: str
    instead: str | None = None

    @classmethod
    def of(cls, step: Step, name: str, largest: float) -> PageToken:
        """The value called `name` of a traced step; `largest` is the value with full shade."""
        value, plain = step.values[name], step.before[0]
        others = ", ".join(f"{key} {number:.3f}" for key, number in step.values.items())
        return cls(
            text=visible(step.token),
            number=f"{value:.2f}",
            shade=min(1.0, max(0.0, value / largest)) if largest > 0 else 0.0,
            note=f"{others}; without the method: {visible(plain.token)} {100 * plain.probability:.0f}%",
            instead=None if plain.token_id == step.token_id else visible(plain.token),
        )


@dataclass(frozen=True)
class Cell:
    """A table cell: a figure, with its interval in small print below."""

    text: str
    small: str = ""
    tone: str = ""  # right, wrong or unclear: sets the colour

    @classmethod
    def of(cls, rate: Rate) -> Cell:
        return cls(f"{100 * rate.value:.1f}", f"{100 * rate.low:.1f} to {100 * rate.high:.1f}")


NO_VALUE = Cell("\u2014")


@dataclass(frozen=True)
class TableRow:
    """A row: its heading and its cells."""

    heading: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class RowGroup:
    """Rows under a common heading."""

    heading: str
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class Table:
    """A table. The first column holds the row headings."""

    caption: str
    columns: tuple[str, ...]
    groups: Sequence[RowGroup]
    spans: tuple[tuple[str, int], ...] = ()  # headings above the columns, from the second on: (text, number of columns)
    notes: tuple[str, ...] = ()  # below the table
    short: Mapping[str, bool] | None = None  # what a terminal has of it: columns, and whether with small print; None: all


def visible(token: str) -> str:
    """A token made readable: stripped, with a symbol in place of whitespace."""
    return token.strip() or _INVISIBLE.get(token, "\u2423")


def render_page(template: str, **content: object) -> str:
    """Fill a template of this package; a missing name is an error."""
    return _templates().get_template(template).render(**content)


def render_part(part: str, content: object) -> Markup:
    """Render one part (table, plot, printed or facts) for a page that is assembled elsewhere."""
    html: Markup = getattr(_templates().get_template("parts.html.j2").module, part)(content)
    return html


@cache
def _templates() -> Environment:
    loader = PackageLoader("mgap.pages", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
