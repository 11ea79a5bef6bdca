"""Read answers to MME in the forms that projects write, pair them with their questions, and write the official form.

An answer names its question by task, picture and wording, never by its place: the official script takes lines two by two, and
LLaVA gives both questions of a picture one id. Names of pictures differ in their suffix, and wordings in their ending.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mgap.benchmarks.mme.questions import ALL, ENDING, PROMPTS, read_tabbed
from mgap.benchmarks.pope.answer_files import MISSING
from mgap.benchmarks.yesno_questions import YesNoQuestion
from mgap.errors import BenchmarkError, SettingError
from mgap.io.output_folder import write_files
from mgap.io.record_files import FilePath, FileRow, field, identifier, read_rows

_COLUMNS = ("picture", "question", "label", "answer")
_ENDINGS = tuple(" ".join(after.split()) for after in (*filter(None, dict.fromkeys(PROMPTS.values())), ENDING))
_NEEDED = (
    "an answer has task, image, question and text; or LLaVA's question_id (TASK/PICTURE), prompt and text; or id and text, as "
    "in a run"
)


class GivenAnswer(NamedTuple):
    """One answer of a file."""

    where: str  # the file and the line
    task: str
    key: Hashable  # what names its question: see `_keys`
    text: str
    label: str | None = None  # of the question, in the official form


def read_given(path: FilePath) -> list[GivenAnswer]:
    """The answers of JSON lines, of a folder of them (as `answers/METHOD` of a run), or of a folder of TASK.txt."""
    if not (given := list(_read_folder(path) if os.path.isdir(path) else _read_records(path))):
        raise BenchmarkError(f"{path}: no answer in it; {_NEEDED}")
    return given


def _read_folder(path: FilePath) -> Iterator[GivenAnswer]:
    official = [task for task in ALL if Path(path, f"{task}.txt").is_file()]
    records = sorted(Path(path).glob("*.jsonl"))
    if bool(official) == bool(records):
        found = "both TASK.txt and JSON lines" if official else "neither TASK.txt nor JSON lines"
        raise BenchmarkError(f"{path}: {found} in it; name a folder with one of them, such as {ALL[0]}.txt, or a file")
    for task in official:
        yield from _read_official(Path(path, f"{task}.txt"), task)
    for file in records:
        yield from _read_records(file)


def pair_answers(
    path: FilePath, questions: Sequence[YesNoQuestion], given: Sequence[GivenAnswer], missing: str = "refuse"
) -> tuple[list[tuple[YesNoQuestion, str]], list[str]]:
    """Every question with its answer, and a note on questions without one.

    missing="refuse" requires an answer to each; "wrong" pairs an unanswered question with an empty text, "skip" leaves both
    questions of its picture out.
    """
    if missing not in MISSING:
        raise SettingError(f"missing={missing!r}: choose from {', '.join(MISSING)}")
    by_key = {key: question for question in questions for key in _keys(question)}
    if len(by_key) < 2 * len(questions):
        raise BenchmarkError("two of the questions have one wording and one picture's name: answers cannot tell them apart")
    answers: dict[str, GivenAnswer] = {}
    for each in given:
        question = by_key.get(each.key)
        if question is None:
            raise BenchmarkError(
                f"{each.where}: answers a question that is not asked; do answers and questions belong together?"
            )
        if question.id in answers:
            raise BenchmarkError(
                f"{each.where}: {question.id} is answered already in {answers[question.id].where}; keep one of the answers"
            )
        if each.label is not None and each.label != question.label:
            raise BenchmarkError(f"{each.where}: the label is {each.label}, and MME's is {question.label}; mend the file")
        answers[question.id] = each
    absent = [question for question in questions if question.id not in answers]
    if absent and missing == "refuse":
        raise BenchmarkError(
            f"{path}: {len(absent)} of {len(questions)} questions have no answer, first {absent[0].id!r}; answer them, or say "
            'missing="wrong" to count them as wrong or missing="skip" to leave their pictures out'
        )
    left_out = {question.image for question in absent} if missing == "skip" else set()
    effect = "counted as wrong" if missing == "wrong" else f"left out, with their {len(left_out)} pictures"
    notes = [f"{path}: {len(absent)} of {len(questions)} questions have no answer and are {effect}"] if absent else []
    kept = [question for question in questions if question.image not in left_out]
    return [(question, answers[question.id].text if question.id in answers else "") for question in kept], notes


def write_official(folder: FilePath, pairs: Sequence[tuple[YesNoQuestion, str]]) -> list[Path]:
    """Write TASK.txt as the official script reads it. A tab or a line break of an answer becomes a space."""
    texts: dict[str, str] = {}
    for question, answer in pairs:
        task, name = question.image.split("/", maxsplit=1)
        cells = (name, question.text, question.label.capitalize(), re.sub(r"[\t\r\n]", " ", answer))
        texts[f"{task}.txt"] = texts.get(f"{task}.txt", "") + "\t".join(cells) + "\n"
    return write_files(folder, texts)


def _keys(question: YesNoQuestion) -> Iterator[Hashable]:
    """What may name a question: its id in our runs, or task, picture and wording."""
    yield question.id
    task, name = question.image.split("/", maxsplit=1)
    yield _key(task, name, question.text)


def _key(task: str, image: str, question: str) -> Hashable:
    """Names without suffix, and wordings without what projects put after them."""
    wording = " ".join(question.split())
    for ending in _ENDINGS:
        wording = wording.removesuffix(ending).rstrip()
    return task, PurePosixPath(image).stem, wording


def _read_official(path: Path, task: str) -> Iterator[GivenAnswer]:
    for where, (image, question, label, text) in read_tabbed(path, _COLUMNS):
        yield GivenAnswer(f"{path} {where}", task, _key(task, image, question), text, label.strip().lower())


def _read_records(path: FilePath) -> Iterator[GivenAnswer]:
    for row in read_rows(path):
        if row.data.get("failed"):  # a run's record of a question that has no answer
            continue
        task, key = _named(path, row)
        text = row.data.get("text")
        if task not in ALL:
            raise BenchmarkError(f"{path} {row.where}: {task!r:.40} is no task of MME; {_NEEDED}")
        if not isinstance(text, str):
            raise BenchmarkError(f"{path} {row.where}: no text among {', '.join(map(repr, row.data))}; {_NEEDED}")
        yield GivenAnswer(f"{path} {row.where}", task, key, text)


def _named(path: FilePath, row: FileRow) -> tuple[str, Hashable]:
    """The task of an answer, and what names its question."""
    if "task" in row.data:
        task, image, question = (field(path, row, name, _NEEDED) for name in ("task", "image", "question"))
        return task, _key(task, image, question)
    if "question_id" in row.data:
        place = identifier(path, row, "question_id", _NEEDED)
        task = place.partition("/")[0]
        return task, _key(task, place, field(path, row, "prompt", _NEEDED))
    name = field(path, row, "id", _NEEDED)
    return name.partition("/")[0], name
