"""Read answers to HallusionBench: JSON lines with `question_id` and `text`, or the authors' array with `model_prediction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mgap.benchmarks.hallusionbench.questions import PARTS, id_of
from mgap.benchmarks.yesno_questions import refuse_repeats
from mgap.errors import BenchmarkError
from mgap.io.record_files import FilePath, FileRow, identifier, read_rows
from mgap.settings import check_choice

MISSING = ("refuse", "skip")
_NEEDED = f"an answer has question_id, such as VD_illusion_0_0_0, and text; or {', '.join(PARTS)} and model_prediction"


def read_answers(
    path: FilePath, asked: Mapping[str, str], wanted: Sequence[str], missing: str = "refuse"
) -> tuple[dict[str, str], list[str]]:
    """The answers by id, and notes. Refuses answers to any question but those `asked`, whose words are given by id.

    missing="refuse" requires an answer to each of the `wanted` ones; "skip" leaves out those that have none.
    """
    check_choice("missing", missing, MISSING)
    rows = read_rows(path)
    named = [_read(path, row) for row in rows]
    refuse_repeats(path, rows, [name for name, _ in named], "question ids")
    texts = dict(named)
    if unknown := [name for name in texts if name not in asked]:
        raise BenchmarkError(
            f"{path}: {len(unknown)} of {len(texts)} answers are to questions that are not asked, first {unknown[0]!r}; "
            "do the two files belong together?"
        )
    absent = [name for name in wanted if name not in texts]
    if absent and missing == "refuse":
        raise BenchmarkError(
            f"{path}: {len(absent)} of {len(wanted)} questions have no answer, first {absent[0]!r}; answer them, or say "
            'missing="skip" to leave them out, and with them the pairs and figures that they belong to'
        )
    changed = [n for n, r in zip(texts, rows, strict=True) if r.data.get("question", asked[n]) != asked[n]]
    notes = [f"{path}: {len(changed)} answers are to an older wording, first {changed[0]!r}; they count"] if changed else []
    notes += [f"{path}: {len(absent)} of {len(wanted)} questions have no answer and are left out"] if absent else []
    return texts, notes


def _read(path: FilePath, row: FileRow) -> tuple[str, str]:
    is_the_authors = "model_prediction" in row.data
    text = row.data.get("model_prediction" if is_the_authors else "text")
    if not isinstance(text, str):
        raise BenchmarkError(f"{path} {row.where}: no text among {', '.join(map(repr, row.data))}; {_NEEDED}")
    if is_the_authors:
        return id_of(path, row, _NEEDED), text
    return identifier(path, row, "question_id", _NEEDED).replace("_", "/"), text
