"""Tables of the representation analysis: where methods move states, and Theorem 1 against each reference."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.benchmarks.statistics import Rate
from mgap.diagnosis.representation import Line, Representation
from mgap.pages.html_page import NO_VALUE, Cell, RowGroup, Table, TableRow

SHIFTS = {  # figure: (heading, whether it is in percent)
    "prior": ("|V'h|", False),
    "prior_share": ("% of |h|", True),
    "prior_after": ("|V'h'|", False),
    "prior_after_share": ("% of |h'|", True),
    "inside": ("inside", False),
    "inside_share": ("% of |h|", True),
    "outside": ("outside", False),
    "outside_share": ("% of |h|", True),
    "held": ("% inside", True),
    "moved_share": ("whole, % of |h|", True),
}
ORACLE = {
    "distance": ("|e| in % of |h|", True),
    "holds": ("Holds, %", True),
    "best": ("\u03b2*", False),
    "beta": ("\u03b2", False),
    "contains": ("\u03b2 in (0, 2\u03b2*), %", True),
    "closer": ("Closer, %", True),
    "closer_best": ("Closer at \u03b2*, %", True),
}
STATES = {
    "wrong": "questions that plain decoding answers wrongly",
    "right": "questions that plain decoding answers rightly",
    "apart": "steps of captions after plain and true text have parted",
}


def representation_tables(measured: Representation) -> list[Table]:
    """Shifts by method and strength; Theorem 1 for methods that take its step; how much closer every method comes."""
    return [_shift_table(measured), *_oracle_tables(measured), _closer_table(measured)]


def _shift_table(measured: Representation) -> Table:
    caption = (
        f"Where methods move the state h that the first word of an answer is decoded from ({measured.model}), by strength: "
        "means with 95% intervals from a bootstrap over pictures. Projection: how much of h lies in the prior's subspace "
        "before and after, as a length and as a share of the whole state. Shift: the lengths of the parts of h' - h inside the "
        "subspace and outside it, also in percent of |h|, how much of the summed squared shift is inside, and the whole shift."
    )
    chance = 100 * measured.rank / measured.width
    note = (
        f"A shift in a random direction has {chance:.2g}% of its square inside: {measured.rank} of {measured.width} dimensions."
    )
    groups = [
        RowGroup(label, tuple(_row(line, SHIFTS) for line in measured.shifts if line.method == label))
        for label in dict.fromkeys(line.method for line in measured.shifts)
    ]
    spans = (("Projection before", 2), ("Projection after", 2), ("Shift", 6))
    return Table(caption, ("Strength", *(name for name, _ in SHIFTS.values())), groups, spans, (note,))


def _oracle_tables(measured: Representation) -> list[Table]:
    """No table if no method steps along the prior's projection."""
    caption = (
        "Theorem 1: a step from h to h - \u03b2 VV'h leads closer to a reference state exactly when \u03b2 lies in "
        "(0, 2\u03b2*). e: from the reference to h. Holds: how often the theorem's condition \u27e8e, VV'h\u27e9 > 0 does, "
        "without which no step leads closer. \u03b2* and the method's own \u03b2: means where it holds. Closer: how much of "
        "the summed distances to the references the method takes away (below 0: it leads away), and how much the best steps "
        "would. 95% intervals from a bootstrap over pictures."
    )
    lines = [line for line in measured.oracle if "beta" in line.figures and line.strength > 0]
    groups = [
        RowGroup(f"{label}, {reference}: {STATES[group]} ({measured.counts[group]})", tuple(_row(line, ORACLE) for line in own))
        for (label, group, reference), own in _sorted(lines).items()
    ]
    columns = ("Strength", *(name for name, _ in ORACLE.values()))
    return [Table(caption, columns, groups, notes=_oracle_notes(measured))] if groups else []


def _closer_table(measured: Representation) -> Table:
    """All methods side by side, also those that take another step than the theorem's."""
    strengths = list(dict.fromkeys(line.strength for line in measured.oracle if line.strength > 0))  # at 0 nothing moves
    caption = (
        "How much of the summed distances to the references each method takes away, in percent, by strength; below 0: it leads "
        "away. 95% intervals from a bootstrap over pictures."
    )
    groups: dict[str, list[TableRow]] = {}
    for (label, group, reference), own in _sorted(measured.oracle).items():
        cells = {line.strength: _cell(line.figures["closer"], True) for line in own}
        heading = f"{reference}: {STATES[group]} ({measured.counts[group]})"
        groups.setdefault(heading, []).append(TableRow(label, tuple(cells.get(strength, NO_VALUE) for strength in strengths)))
    parts = [RowGroup(heading, tuple(rows)) for heading, rows in groups.items()]
    return Table(caption, ("Method", *(f"{strength:g}" for strength in strengths)), parts, notes=_oracle_notes(measured))


def _sorted(lines: Sequence[Line]) -> dict[tuple[str, str, str], list[Line]]:
    """Lines by method, group of states and reference, in their order."""
    by_key: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        by_key.setdefault((line.method, line.group, line.reference), []).append(line)
    return by_key


def _oracle_notes(measured: Representation) -> tuple[str, ...]:
    notes = [
        f"Aligned: the mean of the {measured.k} nearest of the bank's {measured.bank} states that were answered rightly "
        "and whose true answer is the question's. Other answer, a control: the same with the other true answer."
    ]
    if unclear := measured.counts.get("unclear"):
        notes.append(f"Left out: {unclear} of the questions, to which plain decoding says neither yes nor no.")
    if "agree" in measured.counts:
        notes.append(
            "Teacher: the state at the same step when a true text is forced. At "
            f"{measured.counts['agree']} steps both texts are still the same, every first one among them: e is 0 there, the "
            "theorem says nothing, and they are left out. Other step, a control: a state at another step of the true texts."
        )
    return (*notes, *measured.notes)


def _row(line: Line, columns: dict[str, tuple[str, bool]]) -> TableRow:
    cells: Sequence[Cell] = [_cell(line.figures.get(name), percent) for name, (_, percent) in columns.items()]
    return TableRow(f"{line.strength:g}", tuple(cells))


def _cell(rate: Rate | None, percent: bool) -> Cell:
    """With three digits: these figures span orders of magnitude."""
    if rate is None or rate.of == 0:
        return NO_VALUE
    scale = 100 if percent else 1
    value, low, high = (_number(scale * number) for number in (rate.value, rate.low, rate.high))
    return Cell(value, f"{low} to {high}")


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 5e-4 else "0"
