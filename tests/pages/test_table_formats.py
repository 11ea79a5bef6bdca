"""One table in all its forms: the same numbers in each, and every text escaped."""

import re
import shutil
from dataclasses import replace

import pytest

from mgap.pages.html_page import Cell, RowGroup, Table, TableRow, render_page
from mgap.pages.table_formats import WIDE, as_json, escape_latex, latex, markdown, shortened
from tests import processes

NASTY = r'50% of $x_1$ & {a} #2 ~ ^ \cmd | <b> "q" `c` *' + "\u2193\u2020\u03b1"
TABLE = Table(
    "Percent",
    ("Method", "Acc", "F1", "Acc", "F1"),
    [
        RowGroup("LLaVA", (TableRow("Vanilla", (Cell("88.9", "87.0 to 90.1"), Cell("1"), Cell("2"), Cell("\u2014"))),)),
        RowGroup("Qwen", (TableRow("w/o Prot", (Cell("-3.5"), Cell("4"), Cell("5"), Cell("6", "noise"))),)),
    ],
    spans=(("Random", 2), ("Popular", 2)),
    notes=("a note",),
)
UGLY = Table(NASTY, (NASTY,) * WIDE, [RowGroup(NASTY, (TableRow(NASTY, (Cell(NASTY, NASTY),) * (WIDE - 1)),))], notes=(NASTY,))


def parse_markdown(text):
    """Header and rows of its only table, escapes undone."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert all(set(cell) <= set("-:") for cell in rows[1])
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in (rows[0], *rows[2:])]


def check_latex(text):
    """Braces and environments close in turn, and every row of the table has as many columns as were declared."""
    bare = re.sub(r"%.*", "", text.replace(r"\\", "\n").replace(r"\%", ""))
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", bare):
        depth += {"{": 1, "}": -1}[brace]
        assert depth >= 0
    assert depth == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{([^}]*)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    for columns, body in re.findall(r"\\begin\{tabular\}\{(l+r*)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        for row in body.split(r"\\")[:-1]:
            spans = [int(size) for size in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans) == len(columns), row
    assert not re.search(r"(?<!\\)[#_^~](?!\{\\dagger\})", re.sub(r"\\(label|cmidrule\S*?)\{[^}]*\}", "", bare))


def test_markdown_reads_back_to_the_same_numbers():
    head, *rows = parse_markdown(markdown(TABLE))
    assert head == ["group", "Method", "Random: Acc", "Random: F1", "Popular: Acc", "Popular: F1"]
    assert rows == [
        ["LLaVA", "Vanilla", "88.9 (87.0 to 90.1)", "1", "2", "\u2014"],
        ["Qwen", "w/o Prot", "-3.5", "4", "5", "6 (noise)"],
    ]
    assert "- a note" in markdown(TABLE)


def test_a_table_without_groups_has_no_column_for_them():
    head, row = parse_markdown(markdown(Table("", ("Method", "F1"), [RowGroup("", (TableRow("a", (Cell("1"),)),))])))
    assert (head, row) == (["Method", "F1"], ["a", "1"])


def test_markdown_escapes_what_would_break_a_table():
    head, row = parse_markdown(markdown(UGLY))
    assert len(head) == len(row) == WIDE + 1
    assert row[2] == f"{NASTY} ({NASTY})"


def test_latex_is_balanced_and_escaped():
    check_latex(latex(TABLE, "tab:a"))
    ugly = latex(UGLY, "tab:b c")
    check_latex(ugly)
    assert r"\begin{table*}" in ugly
    assert r"\label{tab:b-c}" in ugly
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in latex(TABLE, "tab:a")
    assert r"88.9 {\scriptsize(87.0 to 90.1)}" in latex(TABLE, "tab:a")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w/o 5%", r"w/o 5\%"),
        ("a_b", r"a\_b"),
        ("\u2193", r"$\downarrow$"),
        ("C:\\x", r"C:\textbackslash{}x"),
        ("< 0.001", r"\textless{} 0.001"),
    ],
)
def test_text_is_printed_as_it_is(text, shown):
    assert escape_latex(text) == shown


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    tables = latex(TABLE, "tab:a") + latex(UGLY, "tab:b")
    document = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + tables + "\\end{document}\n"
    (tmp_path / "all.tex").write_text(document)
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    assert processes.run(words, cwd=tmp_path, capture_output=True).returncode == 0


def test_json_has_every_cell():
    data = as_json(TABLE)
    assert data["columns"][3] == {"over": "Popular", "name": "Acc"}
    assert data["groups"][1]["rows"][0] == {
        "heading": "w/o Prot",
        "cells": [["-3.5", ""], ["4", ""], ["5", ""], ["6", "noise"]],
    }
    assert data["notes"] == ["a note"]


def test_html_shows_spans_notes_and_tones():
    table = Table(
        "c", ("", "a", "b"), [RowGroup("", (TableRow("r", (Cell("1", "s", "wrong"), Cell("2"))),))], (("over", 2),), (NASTY,)
    )
    content = {"title": "t", "lead": [], "warnings": [], "drawn": [], "symbols": (), "changed": [], "facts": [], "pictures": []}
    source = render_page("report.html.j2", **content, verdicts=[], sections=[{"name": "x", "heading": "X", "tables": [table]}])
    assert '<th scope="colgroup" colspan="2">over</th>' in source
    assert '<td class="wrong">1<small>s</small></td>' in source
    assert "<b>" not in source


def test_a_short_table_has_the_columns_that_it_names_and_their_small_print_where_it_says_so():
    rows = (TableRow("MGAP", (Cell("1", "0 to 2"), Cell("3", "2 to 4"), Cell("5", "4 to 6"))),)
    table = Table("What it is.", ("Method", "A", "B", "C"), [RowGroup("g", rows)], short={"A": False, "C": True})
    short = shortened(table)
    assert short.columns == ("Method", "A", "C")
    assert short.groups == [RowGroup("g", (TableRow("MGAP", (Cell("1"), Cell("5", "4 to 6"))),))]
    whole = replace(table, short=None)
    assert shortened(whole) is whole


def test_a_caption_is_folded_to_a_width():
    table = Table("One word and another. " * 20, ("Method", "A"), [RowGroup("", (TableRow("MGAP", (Cell("1"),)),))])
    folded = markdown(table, 60)
    assert max(map(len, folded.splitlines())) <= 60
    assert " ".join(folded.split()) == " ".join(markdown(table).split())
