"""Tables of a tuning: the best settings as the rule ranks them, and what the pick changes."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.pages.html_page import Cell, RowGroup, Table, TableRow
from mgap.tuning.choice import SettingFigures
from mgap.tuning.sweep import Point

VALUES = {"departure": "mean step", "labels": "mean of the objective"}


def spell(point: Point) -> str:
    """A setting in words."""
    if point.alpha == 0:
        return "alpha 0 (plain decoding)"
    off = [f"no {name}" for name, on in (("gate", point.gate), ("protection", point.protect)) if not on]
    return ", ".join([f"alpha {point.alpha:g}", f"lambda {point.lam:g}", f"K {point.rank}", *off])


def best_table(rule: str, leaders: Sequence[SettingFigures], plain: SettingFigures, notes: Sequence[str] = ()) -> Table:
    """The settings that a rule ranks first, with plain decoding below."""
    has_labels = plain.labels is not None
    columns = ("setting", *([] if has_labels else [VALUES[rule]]), *(["F1", "accuracy"] if has_labels else []))
    columns = (*columns, *(["mean step"] if rule != "departure" else []), "states outside", "answers changed")

    def row(setting: SettingFigures) -> TableRow:
        rates, cells = setting.rates(), []
        if has_labels:
            cells += [Cell.of(rates["f1"]), Cell.of(rates["accuracy"])]
        else:
            cells.append(Cell("" if setting.value is None else f"{setting.value:.3f}"))
        if rule != "departure":
            cells.append(Cell(f"{setting.step:.3f}"))
        return TableRow(spell(setting.point), (*cells, Cell.of(rates["departed"]), Cell(str(sum(setting.turned.values())))))

    rows = [*leaders, *([] if plain.point in [setting.point for setting in leaders] else [plain])]
    return Table("The best settings, first the pick", columns, [RowGroup("", tuple(map(row, rows)))], notes=tuple(notes))


def change_table(picked: SettingFigures, plain: SettingFigures) -> Table:
    """The figures of the pick against plain decoding, on the same pictures."""
    before, after = plain.rates(), picked.rates()
    rows = [
        TableRow(
            name.replace("_", " "),
            (
                Cell.of(before[name]),
                Cell.of(after[name]),
                Cell(f"{100 * change.value:+.1f}", f"{100 * change.low:+.1f} to {100 * change.high:+.1f}"),
            ),
        )
        for name, change in picked.less(plain).items()
    ]
    turned = ", ".join(f"{count} from {pair}" for pair, count in picked.turned.items()) or "none"
    notes = (f"answers changed: {turned}", "in percent, with 95% intervals over pictures; the change is paired")
    return Table("Against plain decoding", ("figure", "alpha 0", "pick", "change"), [RowGroup("", tuple(rows))], notes=notes)
