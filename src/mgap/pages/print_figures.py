"""Figures for print: one look, and every figure as PDF, SVG and PNG with a CSV of exactly the data that is drawn.

Widths and type are those of a two-column paper (ICML: columns of 3.25 in, text of 6.75 in, type of 8 pt). Colours are Okabe and
Ito's (2008), which colour-blind readers tell apart, in the order of the page's, with an olive for their yellow, which is faint
on white; marks, line styles and hatches say the same in grey. The same data gives the same bytes: no file holds a date. In SVG
text stays text; in PDF fonts are embedded as TrueType.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from PIL import Image

from mgap.errors import SettingError
from mgap.io.atomic_files import replacing
from mgap.pages import plots
from mgap.pages.html_page import PagePicture

COLUMN, TEXT = 3.25, 6.75  # inches
DPI = 300
FIGURES = "figures"  # the folder that they go to, in a report's
FORMATS = ("pdf", "svg", "png", "csv")
BLACK, BLUE, VERMILLION, PURPLE = "#000000", "#0072b2", "#d55e00", "#cc79a7"
GREEN, ORANGE, SKY, OLIVE = "#009e73", "#e69f00", "#56b4e9", "#999933"
COLOURS = (BLACK, BLUE, VERMILLION, PURPLE, GREEN, ORANGE, SKY, OLIVE)
MARKS = (*plots.MARKS, "X", "p")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), "-.", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)), "--")
HATCHES = ("", "/////", ".....", "\\\\\\\\\\", "xxxxx", "-----", "+++++", "ooo")
GREY, FAINT = "#8c8c8c", "#d9d9d9"
_SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "mgap", "pdf.fonttype": 42, "text.parse_math": False,
    "font.family": ["DejaVu Sans"], "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "figure.facecolor": "white", "savefig.facecolor": "white",
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "xtick.major.width": 0.7,
    "ytick.major.width": 0.7, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "lines.linewidth": 1.2, "lines.markersize": 4,
    "hatch.linewidth": 0.5, "legend.frameon": False, "legend.handlelength": 2.4, "legend.columnspacing": 1.4,
}  # fmt: skip

Value = str | int | float | None


class Look(NamedTuple):
    """How one series is told from the others, in colour and without."""

    colour: str
    mark: str
    line: Any
    hatch: str


@dataclass(frozen=True)
class Print:
    """A drawn figure, what it shows in words, and the data that is drawn."""

    name: str  # of its files
    caption: str
    figure: Figure
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def picture(self) -> PagePicture:
        """For a page: as it is printed, at half the resolution."""
        with Image.open(io.BytesIO(_draw(self.figure, "png", self.name, ""))) as drawn:
            return PagePicture.of(drawn.resize((drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS), self.caption)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        return save(self.figure, folder, self.name, self.columns, self.rows, caption=self.caption)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """One for each series, in this order; refuses more than can be told apart."""
    series = list(dict.fromkeys(names))
    if len(series) > len(COLOURS):
        raise SettingError(f"{len(series)} series in one figure: at most {len(COLOURS)} can be told apart; draw fewer")
    return {name: Look(*look) for name, look in zip(series, zip(COLOURS, MARKS, LINES, HATCHES, strict=True), strict=False)}


@contextmanager
def style() -> Iterator[None]:
    """Inside the block, what is drawn has the look of print."""
    with mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]
        yield


def sheet(width: float, height: float) -> Figure:
    """An empty figure of so many inches; nothing in it will overlap. Call inside `style`."""
    return Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Below the panels, where it covers nothing, in as few rows as the width has room for, these equally long."""
    canvas = FigureCanvasAgg(figure)
    rows = 0
    while True:
        rows += 1
        columns = math.ceil(len(handles) / rows)
        drawn = figure.legend(handles=list(handles), loc="outside lower center", ncols=columns)
        width = drawn.get_window_extent(canvas.get_renderer()).width  # type: ignore[no-untyped-call]
        if columns == 1 or width <= figure.bbox.width:
            return
        drawn.remove()


def settle(figure: Figure) -> None:
    """Find a place for everything, once: what is added later moves nothing."""
    if figure.get_layout_engine() is None or isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):
        return
    with style():
        for _ in range(2):  # panels of a fixed shape take the second to come to rest
            figure.draw_without_rendering()
        figure.set_layout_engine("none")


def grid(axes: Axes) -> None:
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def save(
    figure: Figure,
    folder: str | os.PathLike[str],
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Value]],
    *,
    caption: str = "",
) -> list[Path]:
    """Write NAME.pdf, NAME.svg, NAME.png and NAME.csv, each whole or not at all; all are drawn before the first is written."""
    settle(figure)
    drawn = {form: _draw(figure, form, name, caption) for form in FORMATS[:-1]}
    drawn["csv"] = _csv(columns, rows)
    paths = []
    try:
        for form, data in drawn.items():
            paths.append(Path(folder) / f"{name}.{form}")
            with replacing(paths[-1]) as file:
                file.write(data)
    except OSError as error:
        raise SettingError(f"{folder}: cannot be written ({error.strerror}); name another folder") from None
    return paths


def _draw(figure: Figure, form: str, name: str, caption: str) -> bytes:
    changing: dict[str, tuple[str, ...]] = {"pdf": ("CreationDate",), "svg": ("Date",), "png": ("Software",)}
    said = {"Title": name, "Subject" if form == "pdf" else "Description": caption}
    with style():
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=DPI, metadata={**said, **dict.fromkeys(changing[form])})
    return file.getvalue()


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> bytes:
    """Numbers as they are, to the last digit; nothing where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        if len(row) != len(columns):
            raise SettingError(f"a row of {len(row)} values under {len(columns)} columns: give one a column")
        writer.writerow(["" if value is None else value for value in row])
    return text.getvalue().encode()
