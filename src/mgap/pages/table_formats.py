"""One table, four forms: `page.Table` is what HTML shows; here it becomes Markdown, LaTeX (booktabs) and plain JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from mgap.pages.html_page import Cell, Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': "''", "\u2193": r"$\downarrow$", "\u2191": r"$\uparrow$", "\u2212": "$-$", "\u2013": "--", "\u2014": "---",
    "\u2020": r"$^{\dagger}$", "\u00d7": r"$\times$", "\u2026": r"\ldots{}", "\u2019": "'", "\u2192": r"$\rightarrow$",
    "\u03b1": r"$\alpha$", "\u03b2": r"$\beta$", "\u03b3": r"$\gamma$", "\u03b4": r"$\delta$", "\u03bb": r"$\lambda$",
    "\u03c4": r"$\tau$", "\n": " ",
}  # fmt: skip
WIDE = 7  # columns, from which on a LaTeX table runs over both columns of a paper


def markdown(table: Table) -> str:
    """As GitHub reads it: the caption, one table with the groups as its first column, then the notes."""
    has_groups = any(group.heading for group in table.groups)
    heads = [f"{over}: {name}" if over else name for over, name in zip(_over(table), table.columns, strict=True)]
    lines = [[*(["group"] if has_groups else []), *heads]]
    lines.append(["---"] * (len(lines[0]) - len(table.columns) + 1) + ["---:"] * (len(table.columns) - 1))
    for group in table.groups:
        for row in group.rows:
            lines.append([*([group.heading] if has_groups else []), row.heading, *map(_whole, row.cells)])
    drawn = "\n".join(f"| {' | '.join(line if n == 1 else map(_pipe, line))} |" for n, line in enumerate(lines))
    notes = "".join(f"\n- {_pipe(note)}" for note in table.notes)
    return f"{_pipe(table.caption)}\n\n{drawn}\n" + (notes + "\n" if notes else "")


def latex(table: Table, label: str) -> str:
    """A floating table for a document that uses the package booktabs."""
    width = len(table.columns)
    kind = "table*" if width >= WIDE else "table"
    lines = [rf"\begin{{{kind}}}[t]", r"\centering", r"\small", r"\setlength{\tabcolsep}{4pt}"]
    lines += [rf"\caption{{{escape(table.caption)}}}", rf"\label{{{re.sub(r'[^A-Za-z0-9:-]+', '-', label)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    if table.spans:
        lines.append(
            "& " + " & ".join(rf"\multicolumn{{{size}}}{{c}}{{{escape(name)}}}" for name, size in table.spans) + r" \\"
        )
        lines.append("".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in _reach(table.spans)))
    lines.append(" & ".join(map(escape, table.columns)) + r" \\")
    for group in table.groups:
        lines.append(r"\midrule")
        if group.heading:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape(group.heading)}}}}} \\")
        lines += [" & ".join([escape(row.heading), *map(_small, row.cells)]) + r" \\" for row in group.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip{{\footnotesize {escape(note)}\par}}" for note in table.notes]
    return "\n".join([*lines, rf"\end{{{kind}}}", ""])


def plain(table: Table) -> dict[str, Any]:
    """As JSON: rows with their headings, cells as they are shown."""
    return {
        "caption": table.caption,
        "columns": [{"over": over, "name": name} for over, name in zip(_over(table), table.columns, strict=True)],
        "groups": [
            {
                "heading": group.heading,
                "rows": [{"heading": row.heading, "cells": [[c.text, c.small] for c in row.cells]} for row in group.rows],
            }
            for group in table.groups
        ],
        "notes": list(table.notes),
    }


def escape(text: str) -> str:
    """Plain text as LaTeX prints it."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _pipe(text: str) -> str:
    """Plain text as a cell of a Markdown table."""
    return re.sub(r"([\\|`*<])", r"\\\1", " ".join(text.split()))


def _whole(cell: Cell) -> str:
    return f"{cell.text} ({cell.small})" if cell.small else cell.text


def _small(cell: Cell) -> str:
    return f"{escape(cell.text)} {{\\scriptsize({escape(cell.small)})}}" if cell.small else escape(cell.text)


def _over(table: Table) -> list[str]:
    """What stands above each column."""
    return [""] + [name for name, size in table.spans for _ in range(size)] if table.spans else [""] * len(table.columns)


def _reach(spans: Sequence[tuple[str, int]]) -> Iterable[tuple[int, int]]:
    first = 2
    for _, size in spans:
        yield first, first + size - 1
        first += size
