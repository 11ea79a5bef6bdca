"""Tables of what is left of each method beside controls, and of which answers it turned."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.benchmarks.pope.equal_recall import AtEqual
from mgap.pages.html_page import NO_VALUE, Cell, RowGroup, Table, TableRow
from mgap.reports.controls import Changed
from mgap.reports.score_tables import control_rows, difference_cell, group_heading, groups_of_runs
from mgap.reports.scores import Kind, Scores

F1 = Kind(percent=True, better="higher")
NO_BETTER = "no better than a constant"
LEFT = (
    "What is left beyond controls, in points, with 95% intervals from a paired bootstrap over pictures. The line to beat: the "
    "highest F1 among plain decoding and the controls, on these questions. At equal recall, and at an equal share of yes: the "
    "precision of the method against that of plain decoding under the constant shift that has it, found anew in each resample. "
    "A method beats the constant only if the interval lies above 0."
)
TURNED = (
    "Answers of plain decoding that each row turned. To yes: right (FN to TP) and wrong (TN to FP). To no: right (FP to TN) "
    "and wrong (TP to FN). One-sided: the larger direction's share, in percent."
)
BY_SHIFT = " A shift: the same of plain decoding under the constant shift whose number of yes is nearest."
SIDES = ("right", "wrong", "right", "wrong", "one-sided")


def left_tables(runs: Sequence[Scores]) -> list[Table]:
    """How much of each method's gain is left beyond the best control; none without log-odds and controls."""
    groups = []
    for name, scores, group in groups_of_runs(runs):
        found = {label: result.controls[group] for label, result in scores.results.items() if group in result.controls}
        held = {label: one for label, one in found.items() if one.left is not None or one.equal_recall is not None}
        rows = [TableRow(label, _left(scores, label, group)) for label in held if label not in control_rows(scores)]
        groups += [RowGroup(group_heading(runs, name, group), tuple(rows))] if rows else []
    columns = ("Method", "Says yes", "F1 over plain", "Left beyond the line", "Line to beat", "At equal recall", "At equal yes")
    short = {"Left beyond the line": True, "Line to beat": True, "At equal recall": False}
    return [Table(LEFT, columns, groups, short=short)] if groups else []


def turned_tables(runs: Sequence[Scores]) -> list[Table]:
    """Which of plain decoding's answers each row turned, of yes/no questions, and which ones a shift would have turned."""
    groups, has_shifts = list[RowGroup](), False
    for name, scores, group in groups_of_runs(runs):
        found = {label: result.controls[group] for label, result in scores.results.items() if group in result.controls}
        has_shifts |= any(one.changed_by_shift is not None for one in found.values())
        rows = tuple(TableRow(label, (*_turned(one.changed), *_turned(one.changed_by_shift))) for label, one in found.items())
        groups += [RowGroup(group_heading(runs, name, group), rows)] if rows else []
    if not groups:
        return []
    if has_shifts:
        spans = (("To yes", 2), ("To no", 2), ("", 1), ("A shift: to yes", 2), ("A shift: to no", 2), ("", 1))
        return [Table(TURNED + BY_SHIFT, ("Method", *SIDES, *SIDES), groups, spans)]
    short = [RowGroup(group.heading, tuple(TableRow(row.heading, row.cells[:5]) for row in group.rows)) for group in groups]
    return [Table(TURNED, ("Method", *SIDES), short, (("To yes", 2), ("To no", 2), ("", 1)))]


def _left(scores: Scores, label: str, group: str) -> tuple[Cell, ...]:
    beside = scores.results[label].controls[group]
    yes, left = scores.results[label].groups[group].rates["yes_ratio"], beside.left
    gains: tuple[Cell, ...] = (NO_VALUE,) * 3
    if left is not None:
        line = scores.results[left.line].groups[group].rates["f1"].value
        gains = (difference_cell(left.gain, F1), difference_cell(left.left, F1), Cell(f"{100 * line:.1f}", left.line))
    return (Cell(f"{100 * yes.value:.1f}"), *gains, _at_equal(beside.equal_recall), _at_equal(beside.equal_yes_ratio))


def _at_equal(equal: AtEqual | None) -> Cell:
    if equal is None:
        return NO_VALUE
    both = f"{100 * equal.precision:.1f} against {100 * equal.shifted:.1f}"
    difference = difference_cell(equal.difference, F1)
    interval = f"{difference.text}, {difference.small.removesuffix(', noise')}"
    if not equal.is_better:
        return Cell(NO_BETTER, f"{both}: {interval}", "unclear")
    return Cell(both, interval, "right")


def _turned(changed: Changed | None) -> tuple[Cell, ...]:
    if changed is None:
        return (NO_VALUE,) * 5
    counts = changed.to_yes_right, changed.to_yes_wrong, changed.to_no_right, changed.to_no_wrong
    share = Cell(f"{100 * changed.one_sidedness:.0f}") if any(counts) else NO_VALUE
    return (*(Cell(str(count)) for count in counts), share)
