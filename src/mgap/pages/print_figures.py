"""Figures for print in one style, each saved as PDF, SVG and PNG with a CSV of exactly the data drawn.

Widths and type fit a two-column paper (ICML: columns of 3.25 in, text of 6.75 in, type of 8 pt). The colours are Okabe and
Ito's (2008), which colour-blind readers can distinguish, in the order of the page's; olive replaces their yellow, which is
faint on white. Marks, line styles and hatches distinguish series in grey. The same data gives the same bytes: no file holds a
date. SVG keeps text as text; PDF embeds fonts as TrueType.
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
FIGURES = "figures"  # their folder, inside the report's
FORMATS = ("pdf", "svg", "png", "csv")
BLACK, BLUE, VERMILLION, PURPLE = "#000000", "#0072b2", "#d55e00", "#cc79a7"
GREEN, ORANGE, SKY, OLIVE = "#009e73", "#e69f00", "#56b4e9", "#999933"
COLOURS = (BLACK, BLUE, VERMILLION, PURPLE, GREEN, ORANGE, SKY, OLIVE)
MARKS = (*plots.MARKS, "X", "p")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), "-.", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)), "--")
HATCHES = ("", "/////", ".....", "\\\\\\\\\\", "xxxxx", "-----", "+++++", "ooo")
GREY, FAINT = "#8c8c8c", "#d9d9d9"
_RC_PARAMS = {
    "svg.fonttype": "none", "svg.hashsalt": "mgap", "pdf.fonttype": 42, "text.parse_math": False,
    "font.family": ["DejaVu Sans"], "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "figure.facecolor": "white", "savefig.facecolor": "white",
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "xtick.major.width": 0.7,
    "ytick.major.width": 0.7, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "lines.linewidth": 1.2, "lines.markersize": 4,
    "hatch.linewidth": 0.5, "legend.frameon": False, "legend.handlelength": 2.4, "legend.columnspacing": 1.4,
}  # fmt: skip

Value = str | int | float | None


class Look(NamedTuple):
    """How one series is drawn, so that it can be recognised in colour and in grey."""

    colour: str
    mark: str
    line: Any
    hatch: str

    @property
    def line_style(self) -> dict[str, Any]:
        """matplotlib's keywords for a line."""
        return {"color": self.colour, "marker": self.mark, "linestyle": self.line}


@dataclass(frozen=True)
class Print:
    """A drawn figure with its caption and its data."""

    name: str  # of its files, without the suffix
    caption: str
    figure: Figure
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def picture(self) -> PagePicture:
        """The printed figure at half the resolution, for a page."""
        with Image.open(io.BytesIO(_draw(self.figure, "png", self.name, ""))) as image:
            return PagePicture.of(image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS), self.caption)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        return save(self.figure, folder, self.name, self.columns, self.rows, caption=self.caption)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each series, in this order; refuses more series than there are looks."""
    series = list(dict.fromkeys(names))
    if len(series) > len(COLOURS):
        raise SettingError(f"{len(series)} series in one figure: at most {len(COLOURS)} can be told apart; draw fewer")
    return {name: Look(*look) for name, look in zip(series, zip(COLOURS, MARKS, LINES, HATCHES, strict=True), strict=False)}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of print."""
    with mpl.rc_context(_RC_PARAMS):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sized in inches, whose layout avoids overlaps. Call inside `style`."""
    return Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Add a legend below the panels, in the fewest rows that fit the width, filled evenly."""
    canvas = FigureCanvasAgg(figure)
    rows = 0
    while True:
        rows += 1
        columns = math.ceil(len(handles) / rows)
        trial = figure.legend(handles=list(handles), loc="outside lower center", ncols=columns)
        width = trial.get_window_extent(canvas.get_renderer()).width  # type: ignore[no-untyped-call]
        if columns == 1 or width <= figure.bbox.width:
            return
        trial.remove()


def freeze_layout(figure: Figure) -> None:
    """Lay the figure out once; what is added later moves nothing."""
    if figure.get_layout_engine() is None or isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):
        return
    with style():
        for _ in range(2):  # panels with a fixed aspect settle in the second pass
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
    """Write NAME.pdf, NAME.svg, NAME.png and NAME.csv, each atomically; all are drawn before the first is written."""
    freeze_layout(figure)
    files = {form: _draw(figure, form, name, caption) for form in FORMATS[:-1]}
    files["csv"] = _csv(columns, rows)
    paths = []
    try:
        for form, data in files.items():
            paths.append(Path(folder) / f"{name}.{form}")
            with replacing(paths[-1]) as file:
                file.write(data)
    except OSError as error:
        raise SettingError(f"{folder}: cannot be written ({error.strerror}); name another folder") from None
    return paths


def _draw(figure: Figure, form: str, name: str, caption: str) -> bytes:
    omitted = {"pdf": "CreationDate", "svg": "Date", "png": "Software"}[form]  # would change the bytes
    metadata = {"Title": name, "Subject" if form == "pdf" else "Description": caption, omitted: None}
    with style():
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=DPI, metadata=metadata)
    return file.getvalue()


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> bytes:
    """Numbers in full precision; None as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        if len(row) != len(columns):
            raise SettingError(f"a row of {len(row)} values under {len(columns)} columns: give one a column")
        writer.writerow(["" if value is None else value for value in row])
    return text.getvalue().encode()
