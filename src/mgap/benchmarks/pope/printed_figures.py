"""Check whether the printed figures of one yes/no split are consistent: any two of accuracy, precision and F1 fix the recall.

With P positives and N negatives among n questions and "yes" as the positive class:

    accuracy = (TP + N - FP) / n,  precision = TP / (TP + FP),  F1 = 2TP / (TP + FP + P),  recall = TP / P

Two of the first three determine TP and FP, hence the third and the recall. TP and FP are whole numbers, so few triples of
printed figures can come from answers at all. All figures are in percent, as printed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from mgap.errors import BenchmarkError, SettingError
from mgap.io.regular_files import regular

MAX_QUESTIONS = 100_000  # the search goes through all counts
NEAR = 0.05  # points of F1 that may be lost when a figure is computed from rounded ones
_SCALE = 10_000  # from a share to the last printed digit of its percentage


@dataclass(frozen=True)
class Printed:
    """One row of a table: figures in percent with two decimals, and the numbers of questions."""

    accuracy: float
    precision: float
    f1: float
    questions: int = 3000
    positives: int = 1500
    name: str = ""

    def __post_init__(self) -> None:
        for figure in ("accuracy", "precision", "f1"):
            if not 0 <= getattr(self, figure) <= 100:
                raise SettingError(f"{figure}={getattr(self, figure)} is no percentage: give a number from 0 to 100")
        if not 0 < self.positives < self.questions <= MAX_QUESTIONS:
            raise SettingError(
                f"positives={self.positives!r:.20} of questions={self.questions!r:.20}: give at least one question of either "
                f"label, and at most {MAX_QUESTIONS:,} questions"
            )

    @property
    def negatives(self) -> int:
        return self.questions - self.positives


@dataclass(frozen=True)
class Confusion:
    """The numbers of right and wrong yes answers."""

    true_positives: int
    false_positives: int


@dataclass(frozen=True)
class Implied:
    """What pairs of printed figures imply about the others; None if a pair does not determine it or contradicts itself."""

    recall_by_accuracy_and_precision: float | None
    recall_by_precision_and_f1: float | None
    recall_by_accuracy_and_f1: float | None
    accuracy_by_precision_and_f1: float | None
    f1_by_accuracy_and_precision: float | None
    accuracy_exists: bool  # some number of right answers prints as this accuracy
    counts: tuple[Confusion, ...]  # that print as all three figures
    counts_by_accuracy_and_precision: tuple[Confusion, ...]  # that print as these two
    verdict: str  # "exact", "near" or "inconsistent"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def imply(row: Printed) -> Implied:
    """Exact: whole counts print as all three. Near: none do, but F1 is within 0.05 points of what the other two imply."""
    accuracy, precision, f1 = row.accuracy / 100, row.precision / 100, row.f1 / 100
    n, P, N = row.questions, row.positives, row.negatives
    recall = _over((accuracy * n - N) * precision, P * (2 * precision - 1))
    other = _over(f1 * precision, 2 * precision - f1)
    implied_f1 = None if recall is None else _over(2 * precision * recall, precision + recall)
    implied_accuracy = None
    if other is not None and precision > 0:
        implied_accuracy = (other * P * (2 - 1 / precision) + N) / n
    pairs = tuple(_counts(row))
    counts = tuple(c for c in pairs if _prints(2 * c.true_positives, c.true_positives + c.false_positives + P, row.f1))
    near = implied_f1 is not None and abs(100 * implied_f1 - row.f1) <= NEAR + 1e-9
    return Implied(
        recall_by_accuracy_and_precision=_percent(recall),
        recall_by_precision_and_f1=_percent(other),
        recall_by_accuracy_and_f1=_percent(_over(f1 * (1 - accuracy) * n, 2 * (1 - f1) * P)),
        accuracy_by_precision_and_f1=_percent(implied_accuracy),
        f1_by_accuracy_and_precision=_percent(implied_f1),
        accuracy_exists=any(True for _ in _right(row)),
        counts=counts,
        counts_by_accuracy_and_precision=pairs,
        verdict="exact" if counts else "near" if near else "inconsistent",
    )


def read_table(path: str | PathLike[str]) -> list[Printed]:
    """Read a CSV file with columns accuracy, precision, f1 and optionally questions, positives; the others form the name."""
    figures, sizes = ("accuracy", "precision", "f1"), ("questions", "positives")
    try:
        with open(path, newline="", encoding="utf-8-sig", opener=regular) as file:
            lines = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchmarkError(f"{path}: no table to read ({error}); give a CSV file") from error
    rows = []
    for number, line in enumerate(lines, start=2):
        name = ", ".join(str(value) for key, value in line.items() if key not in (*figures, *sizes) and value)
        try:
            given: dict[str, Any] = {key: float(line[key]) for key in figures}
            given |= {key: int(line[key]) for key in sizes if line.get(key)}
        except (KeyError, TypeError, ValueError) as error:
            raise BenchmarkError(
                f"{path}, line {number}: cannot be read ({error}); the columns are accuracy, precision and f1 in percent"
            ) from error
        rows.append(Printed(**given, name=name))
    if not rows:
        raise BenchmarkError(f"{path}: has no rows; the columns are accuracy, precision and f1 in percent")
    return rows


def _right(row: Printed) -> Iterator[int]:
    """The numbers of right answers that print as this accuracy."""
    least = int(row.accuracy * row.questions / 100)
    spread = row.questions // _SCALE + 2
    wanted = range(max(0, least - spread), min(row.questions, least + spread) + 1)
    yield from (right for right in wanted if _prints(right, row.questions, row.accuracy))


def _counts(row: Printed) -> Iterator[Confusion]:
    """The counts that print as this accuracy and this precision."""
    for right in _right(row):
        for tp in range(row.positives + 1):
            fp = tp + row.negatives - right
            if 0 <= fp <= row.negatives and _prints(tp, tp + fp, row.precision):
                yield Confusion(tp, fp)


def _prints(part: int, whole: int, percent: float) -> bool:
    """Whether part / whole prints as this percentage, rounded or truncated; truncating a float may lose a last digit."""
    if whole == 0:
        return percent == 0
    over: int = _SCALE * part - round(100 * percent) * whole  # in units of the last digit, times whole
    return -whole <= 2 * over <= 2 * whole


def _over(part: float, whole: float) -> float | None:
    """A share; None if it is undetermined, or outside 0 to 1 by more than rounding."""
    if abs(whole) < 1e-12 or not -0.01 <= part / whole <= 1.01:
        return None
    return part / whole


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
