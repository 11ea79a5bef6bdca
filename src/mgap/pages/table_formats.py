"""Tables (`html_page.Table`) as Markdown, LaTeX (booktabs) and plain JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

from mgap.pages.html_page import Cell, RowGroup, Table, TableRow

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': "''", "\u2193": r"$\downarrow$", "\u2191": r"$\uparrow$", "\u2212": "$-$", "\u2013": "--", "\u2014": "---",
    "\u2020": r"$^{\dagger}$", "\u00d7": r"$\times$", "\u2026": r"\ldots{}", "\u2019": "'", "\u2192": r"$\rightarrow$",
    "\u03b1": r"$\alpha$", "\u03b2": r"$\beta$", "\u03b3": r"$\gamma$", "\u03b4": r"$\delta$", "\u03bb": r"$\lambda$",
    "\u03c4": r"$\tau$", "\n": " ",
}  # fmt: skip
WIDE = 7  # with this many columns or more, a LaTeX table spans both columns of a paper


def markdown(table: Table, width: int = 0) -> str:
    """GitHub's Markdown: the caption, one table with the groups as its first column, then the notes.

    With a `width`, the lines of the caption are no longer.
    """
    has_groups = any(group.heading for group in table.groups)
    heads = [f"{span}: {name}" if span else name for span, name in zip(_span_of_columns(table), table.columns, strict=True)]
    lines = [[*(["group"] if has_groups else []), *heads]]
    lines.append(["---"] * (len(lines[0]) - len(table.columns) + 1) + ["---:"] * (len(table.columns) - 1))
    for group in table.groups:
        for row in group.rows:
            lines.append([*([group.heading] if has_groups else []), row.heading, *map(_markdown_cell, row.cells)])
    body = "\n".join(f"| {' | '.join(line if n == 1 else map(escape_markdown, line))} |" for n, line in enumerate(lines))
    notes = "".join(f"\n- {escape_markdown(note)}" for note in table.notes)
    caption = escape_markdown(table.caption)
    return f"{fill(caption, width) if width else caption}\n\n{body}\n" + (notes + "\n" if notes else "")


def shortened(table: Table) -> Table:
    """The table as a terminal shows it: its columns that matter most, and small print only where the table says so."""
    if table.short is None:
        return table
    kept = [(place, table.short[name]) for place, name in enumerate(table.columns[1:]) if name in table.short]

    def row(whole: TableRow) -> TableRow:
        cells = [(whole.cells[place], is_whole) for place, is_whole in kept]
        return TableRow(whole.heading, tuple(cell if is_whole else Cell(cell.text) for cell, is_whole in cells))

    return replace(
        table,
        columns=(table.columns[0], *(table.columns[place + 1] for place, _ in kept)),
        groups=[RowGroup(group.heading, tuple(map(row, group.rows))) for group in table.groups],
        spans=(),
    )


def latex(table: Table, label: str) -> str:
    """A floating table; the document needs the package booktabs."""
    width = len(table.columns)
    kind = "table*" if width >= WIDE else "table"
    lines = [rf"\begin{{{kind}}}[t]", r"\centering", r"\small", r"\setlength{\tabcolsep}{4pt}"]
    lines += [rf"\caption{{{escape_latex(table.caption)}}}", rf"\label{{{re.sub(r'[^A-Za-z0-9:-]+', '-', label)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    if table.spans:
        lines.append(
            "& " + " & ".join(rf"\multicolumn{{{size}}}{{c}}{{{escape_latex(name)}}}" for name, size in table.spans) + r" \\"
        )
        lines.append("".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in _column_ranges(table.spans)))
    lines.append(" & ".join(map(escape_latex, table.columns)) + r" \\")
    for group in table.groups:
        lines.append(r"\midrule")
        if group.heading:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape_latex(group.heading)}}}}} \\")
        lines += [" & ".join([escape_latex(row.heading), *map(_latex_cell, row.cells)]) + r" \\" for row in group.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip{{\footnotesize {escape_latex(note)}\par}}" for note in table.notes]
    return "\n".join([*lines, rf"\end{{{kind}}}", ""])


def as_json(table: Table) -> dict[str, Any]:
    """Plain JSON: rows with their headings, cells as displayed."""
    return {
        "caption": table.caption,
        "columns": [{"over": span, "name": name} for span, name in zip(_span_of_columns(table), table.columns, strict=True)],
        "groups": [
            {
                "heading": group.heading,
                "rows": [{"heading": row.heading, "cells": [[c.text, c.small] for c in row.cells]} for row in group.rows],
            }
            for group in table.groups
        ],
        "notes": list(table.notes),
    }


def escape_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\|`*<])", r"\\\1", " ".join(text.split()))


def _markdown_cell(cell: Cell) -> str:
    return f"{cell.text} ({cell.small})" if cell.small else cell.text


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    return f"{text} {{\\scriptsize({escape_latex(cell.small)})}}" if cell.small else text


def _span_of_columns(table: Table) -> list[str]:
    """For each column, the heading that spans it, or an empty string."""
    return [""] + [name for name, size in table.spans for _ in range(size)] if table.spans else [""] * len(table.columns)


def _column_ranges(spans: Sequence[tuple[str, int]]) -> Iterable[tuple[int, int]]:
    """The first and last column of each span, counted from 1."""
    first = 2
    for _, size in spans:
        yield first, first + size - 1
        first += size
