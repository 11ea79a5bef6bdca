"""Read answers to yes/no questions in the published formats, and pair them with their questions.

Answers are paired by `question_id`; if none has an id, by position, as the original project does. The text is called `text` or
`answer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mgap.benchmarks.pope.questions import correct_imange
from mgap.benchmarks.yesno_questions import YesNoQuestion, refuse_repeats
from mgap.errors import BenchmarkError, SettingError
from mgap.io.record_files import FilePath, FileRow, identifier, read_rows

MISSING = ("refuse", "wrong", "skip")
_NEEDED = "an answer has question_id and text; or question and answer, a line a question, in the order of the questions"


def read_answers(
    path: FilePath, questions: Sequence[YesNoQuestion], missing: str = "refuse"
) -> tuple[list[tuple[YesNoQuestion, str | None]], list[str]]:
    """Every question with its answer, and a note on questions without one; `missing` as in `settle_missing`."""
    return settle_missing(path, pair_answers(path, questions), missing)


def pair_answers(path: FilePath, questions: Sequence[YesNoQuestion]) -> list[tuple[YesNoQuestion, str | None]]:
    """Every question with its answer, or None where the file has none; refuses answers to other questions."""
    rows = read_rows(path)
    texts = [_text(path, row) for row in rows]
    with_id = [row for row in rows if "question_id" in row.data]
    if with_id and len(with_id) < len(rows):
        without = next(row for row in rows if "question_id" not in row.data)
        raise BenchmarkError(
            f"{path}: {len(rows) - len(with_id)} of {len(rows)} answers have no question_id, first {without.where}"
        )
    if not with_id:
        answers = _by_position(path, rows, texts, questions)
    else:
        ids = [identifier(path, row, "question_id", _NEEDED) for row in rows]
        refuse_repeats(path, rows, ids, "question ids")
        answers = dict(zip(ids, texts, strict=True))
    question_ids = {question.id for question in questions}
    if unknown := [name for name in answers if name not in question_ids]:
        raise BenchmarkError(
            f"{path}: {len(unknown)} of {len(answers)} answers are to questions that are not asked, "
            f"first question_id {unknown[0]!r}; do the two files belong together?"
        )
    return [(question, answers.get(question.id)) for question in questions]


def settle_missing(
    path: FilePath, pairs: Sequence[tuple[YesNoQuestion, str | None]], missing: str
) -> tuple[list[tuple[YesNoQuestion, str | None]], list[str]]:
    """The pairs to score, and a note on questions without an answer.

    missing="refuse" requires an answer to each; "wrong" leaves an unanswered question with None, "skip" leaves it out.
    """
    if missing not in MISSING:
        raise SettingError(f"missing={missing!r}: choose from {', '.join(MISSING)}")
    absent = [question.id for question, text in pairs if text is None]
    if absent and missing == "refuse":
        raise BenchmarkError(
            f"{path}: {len(absent)} of {len(pairs)} questions have no answer, first question_id {absent[0]!r}; "
            'answer them, or say missing="wrong" to count them as wrong or missing="skip" to leave them out'
        )
    effect = "counted as wrong" if missing == "wrong" else "left out"
    notes = [f"{path}: {len(absent)} of {len(pairs)} questions have no answer and are {effect}"] if absent else []
    return [pair for pair in pairs if missing == "wrong" or pair[1] is not None], notes


def _text(path: FilePath, row: FileRow) -> str:
    for name in ("text", "answer"):
        if isinstance(text := row.data.get(name), str):
            return text
    raise BenchmarkError(f"{path} {row.where}: no text among {', '.join(map(repr, row.data))}; {_NEEDED}")


def _by_position(
    path: FilePath, rows: Sequence[FileRow], texts: Sequence[str], questions: Sequence[YesNoQuestion]
) -> dict[str, str]:
    if len(rows) > len(questions):
        raise BenchmarkError(
            f"{path}: {len(rows)} answers without ids to {len(questions)} questions; do the two files belong together?"
        )
    pairs = list(zip(questions, rows, strict=False))
    wrong = [
        row for question, row in pairs if question.text not in correct_imange(str(row.data.get("question", question.text)))
    ]
    if wrong:
        raise BenchmarkError(
            f"{path}: {len(wrong)} answers are to another question than the one at their place, first {wrong[0].where}; "
            "answers without ids must be in the order of the questions"
        )
    return {question.id: text for question, text in zip(questions, texts, strict=False)}
