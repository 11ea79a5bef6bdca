"""`mgap score implied`: check whether the printed figures of a table can all be true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mgap.errors import SettingError
from mgap.io.strict_json import strict_json

if TYPE_CHECKING:
    from mgap.benchmarks.pope.printed_figures import Implied, Printed


def implied(
    table: Annotated[
        str | None, typer.Argument(help="CSV file with the columns accuracy, precision and f1, in percent.")
    ] = None,
    accuracy: Annotated[float | None, typer.Option(help="As printed, in percent.")] = None,
    precision: Annotated[float | None, typer.Option(help="As printed, in percent.")] = None,
    f1: Annotated[float | None, typer.Option(help="As printed, in percent.")] = None,
    questions: Annotated[int, typer.Option(help="Number of questions.")] = 3000,
    positives: Annotated[int | None, typer.Option(help="Number of questions with label yes; default: half.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the recall that the printed figures of a yes/no split imply, and whether any answers could give them.

    Example: mgap score implied --accuracy 88.88 --precision 89.70 --f1 89.76
    """
    from mgap.benchmarks.pope.printed_figures import Printed, imply, read_table

    figures = (accuracy, precision, f1)
    if table is not None:
        if any(figure is not None for figure in figures):
            raise SettingError("a table and single figures were given: leave out one of them")
        rows = read_table(table)
    elif accuracy is None or precision is None or f1 is None:
        raise SettingError("give --accuracy, --precision and --f1 in percent, or a table with these columns")
    else:
        rows = [Printed(accuracy, precision, f1, questions, questions // 2 if positives is None else positives)]
    found = [(row, imply(row)) for row in rows]
    if as_json:
        lines = [
            {"name": r.name, "accuracy": r.accuracy, "precision": r.precision, "f1": r.f1, **i.to_json()} for r, i in found
        ]
        print(strict_json(lines[0] if table is None else lines, indent=1))
    elif table is None:
        print_one(*found[0])
    else:
        print_table(found)


def print_one(row: Printed, found: Implied) -> None:
    print(f"recall by accuracy and precision  {_show(found.recall_by_accuracy_and_precision)}")
    print(f"recall by precision and F1        {_show(found.recall_by_precision_and_f1)}")
    print(f"recall by accuracy and F1         {_show(found.recall_by_accuracy_and_f1)}")
    print(f"F1 by accuracy and precision      {_show(found.f1_by_accuracy_and_precision)}, printed {row.f1:.2f}")
    print(f"accuracy by precision and F1      {_show(found.accuracy_by_precision_and_f1)}, printed {row.accuracy:.2f}")
    if not found.accuracy_exists:
        print(f"no number of right answers out of {row.questions} prints as {row.accuracy:.2f}")
    whole = [f"{c.true_positives} right and {c.false_positives} wrong yes" for c in found.counts]
    print(f"counts on {row.positives} + {row.negatives} questions: {'; '.join(whole) or 'none give these figures'}")
    print(found.verdict)


def print_table(found: list[tuple[Printed, Implied]]) -> None:
    from collections import Counter

    print("accuracy precision    f1   recall by: acc+prec prec+f1  counts       verdict")
    for row, i in found:
        counts = "; ".join(f"{c.true_positives}/{c.false_positives}" for c in i.counts) or "-"
        recalls = f"{_show(i.recall_by_accuracy_and_precision):>19} {_show(i.recall_by_precision_and_f1):>7}"
        off = "" if i.accuracy_exists else ", no such accuracy"
        print(f"{row.accuracy:8.2f} {row.precision:9.2f} {row.f1:5.2f} {recalls}  {counts:<12} {i.verdict}{off}  {row.name}")
    totals = Counter(i.verdict for _, i in found)
    missing = sum(not i.accuracy_exists for _, i in found)
    print(f"{len(found)} rows: {', '.join(f'{totals[v]} {v}' for v in ('exact', 'near', 'inconsistent'))}; ", end="")
    print(f"{missing} with an accuracy that no number of right answers prints as")


def _show(percent: float | None) -> str:
    return "open" if percent is None else f"{percent:.2f}"
