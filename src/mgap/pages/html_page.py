"""Pages: one HTML file with everything inside, from plain data. Text is escaped by the template engine, always."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
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
    """A picture inside the page, and what it shows in words."""

    source: str  # a data: address
    alt: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Image.Image, alt: str) -> PagePicture:
        file = io.BytesIO()
        image.save(file, format="PNG", optimize=True)
        source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return cls(source, alt, image.width, image.height)


@dataclass(frozen=True)
class PageToken:
    """A word of an answer with a number under it; `shade` (0..1) colours it, `instead` is what would have stood there."""

    text: str
    number: str
    shade: float
    note: str
    instead: str | None = None

    @classmethod
    def of(cls, step: Step, name: str, most: float) -> PageToken:
        """One of the values of a traced step, shaded by its share of `most`, and the plain choice where it was another."""
        value, plain = step.values[name], step.before[0]
        others = ", ".join(f"{key} {number:.3f}" for key, number in step.values.items())
        return cls(
            text=visible(step.token),
            number=f"{value:.2f}",
            shade=min(1.0, max(0.0, value / most)) if most > 0 else 0.0,
            note=f"{others}; without the method: {visible(plain.token)} {100 * plain.probability:.0f}%",
            instead=None if plain.token_id == step.token_id else visible(plain.token),
        )


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a figure, and below it, smaller, how sure it is."""

    text: str
    small: str = ""
    tone: str = ""  # right, wrong or unclear: how it is coloured

    @classmethod
    def of(cls, rate: Rate) -> Cell:
        return cls(f"{100 * rate.value:.1f}", f"{100 * rate.low:.1f} to {100 * rate.high:.1f}")


NOTHING = Cell("\u2014")  # where there is no figure


@dataclass(frozen=True)
class TableRow:
    """The heading of a row, and its cells."""

    heading: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class RowGroup:
    """Rows that belong together, under a common heading."""

    heading: str
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class Table:
    """A table: the first column holds the rows' headings."""

    caption: str
    columns: tuple[str, ...]
    groups: Sequence[RowGroup]
    spans: tuple[tuple[str, int], ...] = ()  # above the columns, from the second on: a heading, and over how many
    notes: tuple[str, ...] = ()  # below the table


def visible(token: str) -> str:
    """A token as it can be read: no spaces around it, and a sign for what has no ink."""
    return token.strip() or _INVISIBLE.get(token, "\u2423")


def render_page(template: str, **content: object) -> str:
    """Fill one of the templates of this package; a name that the template needs and is not given is an error."""
    return _templates().get_template(template).render(**content)


def render_part(part: str, content: object) -> Markup:
    """One of the parts that pages are made of (table, plot, printed or facts), for a page that is put together elsewhere."""
    drawn: Markup = getattr(_templates().get_template("parts.html.j2").module, part)(content)
    return drawn


@cache
def _templates() -> Environment:
    loader = PackageLoader("mgap.pages", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
