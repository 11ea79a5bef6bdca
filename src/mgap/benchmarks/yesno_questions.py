"""Yes/no questions from files: every label and every id is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mgap.errors import BenchmarkError
from mgap.io.record_files import FilePath, FileRow

LABELS = ("yes", "no")


class YesNoQuestion(NamedTuple):
    """One question about one picture."""

    id: str
    image: str
    text: str
    label: str  # "yes" or "no"


def read_labels(path: FilePath, rows: Sequence[FileRow]) -> tuple[list[str], list[str]]:
    """The label of every row, and a note on other spellings of yes and no; refuses any other label, with counts."""
    written = [row.data.get("label") for row in rows]
    labels = [label.strip().lower() if isinstance(label, str) else label for label in written]
    if wrong := [index for index, label in enumerate(labels) if label not in LABELS]:
        counts = Counter(repr(written[index]) for index in wrong).most_common(3)
        named = ", ".join(f"{label} ({count})" for label, count in counts)
        raise BenchmarkError(
            f"{path}: {len(wrong)} of {len(rows)} labels are neither yes nor no, first in {rows[wrong[0]].where}: {named}; "
            "write yes or no"
        )
    other = Counter(str(label) for label in written if label not in LABELS)
    note = f"{path}: {other.total()} labels are written {', '.join(map(repr, other))} and read as yes and no"
    return [str(label) for label in labels], [note] if other else []


def refuse_repeats(path: FilePath, rows: Sequence[FileRow], ids: Sequence[str], what: str) -> None:
    """Refuse ids that occur more than once."""
    places: dict[str, list[str]] = {}
    for row, name in zip(rows, ids, strict=True):
        places.setdefault(name, []).append(row.where)
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    if repeated:
        first, where = next(iter(repeated.items()))
        raise BenchmarkError(
            f"{path}: {len(repeated)} {what} stand more than once, first {first!r} in {where[0]} and {where[1]}; "
            "keep one of each"
        )
