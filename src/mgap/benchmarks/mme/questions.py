"""MME's published questions (Fu et al., 2023, arXiv 2306.13394): 1,187 pictures in fourteen tasks, two questions about each.

A file a task, `existence.txt` and so on, without a header: a picture's name, the question and its answer, separated by tabs.
Several tasks have a picture of the same name, so that a picture is named by task and name. Pictures lie in `TASK/NAME` or in
`TASK/images/NAME`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.picture_folder import PictureFolder, keep_pictured
from mgap.benchmarks.pope.questions import suffix
from mgap.benchmarks.published_files import find_data
from mgap.benchmarks.yesno_questions import LABELS, YesNoQuestion
from mgap.errors import BenchmarkError, SettingError
from mgap.io.atomic_files import file_sha256
from mgap.io.record_files import FilePath, read_text
from mgap.types import Sample

HALLUCINATION = ("existence", "count", "position", "color")  # the tasks that papers on hallucination report
PERCEPTION = (*HALLUCINATION, "posters", "celebrity", "scene", "landmark", "artwork", "OCR")
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
ALL = (*PERCEPTION, *COGNITION)
TASK_SETS = {"hallucination": HALLUCINATION, "perception": PERCEPTION, "cognition": COGNITION, "all": ALL}

ENDING = "Please answer yes or no."  # of every question
_SINGLE_WORD = suffix("llava")
PROMPTS = {  # what replaces that ending, by project; None: nothing does
    "mme": None,
    "original": None,
    "llava": _SINGLE_WORD,
    "vcd": _SINGLE_WORD,
    "ritual": _SINGLE_WORD,
    "lmms_eval": _SINGLE_WORD,
}
_PLACES = (".", "eval_tool/Your_Results", "Your_Results", "questions")  # where the files may lie in a folder
_COLUMNS = ("picture", "question", "label")


class TabbedLine(NamedTuple):
    """One line of a tab-separated file."""

    where: str
    cells: list[str]


def choose_tasks(wanted: str) -> tuple[str, ...]:
    """Names of tasks and of sets of them, separated by commas, as the tasks in their published order."""
    names = wanted.split(",")
    if unknown := [name for name in names if name not in (*TASK_SETS, *ALL)]:
        raise SettingError(f"unknown task {unknown[0]!r} of MME: choose from {', '.join((*TASK_SETS, *ALL))}")
    chosen = {task for name in names for task in TASK_SETS.get(name, (name,))}
    return tuple(task for task in ALL if task in chosen)


def find_questions(source: FilePath, tasks: Sequence[str]) -> dict[str, Path]:
    """The file of each task, in the folder or where the project's archive has them."""
    folders = [Path(source, place) for place in _PLACES]
    folder = next((folder for folder in folders if any((folder / f"{task}.txt").is_file() for task in tasks)), None)
    if folder is None:
        raise BenchmarkError(
            f"{source}: no {tasks[0]}.txt in it; name a folder with MME's files, or fetch them: mgap fetch mme"
        )
    files = {task: folder / f"{task}.txt" for task in tasks}
    if absent := [path for path in files.values() if not path.is_file()]:
        raise BenchmarkError(f"{absent[0]}: no such file; take all of MME's files from one place, or choose other tasks")
    return files


def read_questions(path: FilePath, task: str) -> list[YesNoQuestion]:
    """The questions of one task; ids are "TASK/NAME/1" and "/2", in the order of the lines.

    Accuracy+ takes both answers about a picture, so a picture that has not exactly two questions is refused.
    """
    questions: list[YesNoQuestion] = []
    counted: Counter[str] = Counter()
    for where, (name, text, label) in read_tabbed(path, _COLUMNS):
        if label.strip().lower() not in LABELS:
            raise BenchmarkError(f"{path} {where}: the label is {label!r:.40}; write Yes or No")
        counted[name] += 1
        image = f"{task}/{name}"
        questions.append(YesNoQuestion(f"{image}/{counted[name]}", image, text, label.strip().lower()))
    if wrong := [name for name, count in counted.items() if count != 2]:
        raise BenchmarkError(
            f"{path}: {len(wrong)} of {len(counted)} pictures have not exactly two questions, first {wrong[0]!r} with "
            f"{counted[wrong[0]]}; fetch the file again"
        )
    return questions


def read_tabbed(path: FilePath, columns: Sequence[str]) -> Iterator[TabbedLine]:
    """The lines of a file that has these columns; refuses a line that has more or fewer."""
    text = read_text(path).rstrip("\r\n")
    if not text:
        raise BenchmarkError(f"{path}: empty; a line has {', '.join(columns)}, separated by tabs")
    for number, line in enumerate(re.split(r"\r\n?|\n", text), start=1):
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise BenchmarkError(
                f"{path} line {number}: {len(cells)} columns, not {len(columns)} ({', '.join(columns)}); separate them by "
                "tabs, and write no tab and no line break within one"
            )
        yield TabbedLine(f"line {number}", cells)


def read_mme(
    source: FilePath,
    images: FilePath,
    *,
    tasks: str = "hallucination",
    prompt: str = "mme",
    missing: str = "refuse",
) -> Benchmark:
    """Read tasks from a folder of the published files: hallucination, perception, cognition, all, or names with commas.

    `images` is the folder of the pictures. Missing pictures are refused; with missing="skip" they are left out, with a note.
    """
    if prompt not in PROMPTS:
        raise SettingError(f"unknown prompt {prompt!r} of MME: choose from {', '.join(PROMPTS)}")
    files = find_questions(source, choose_tasks(tasks))
    folder = PictureFolder(images)
    samples = [
        Sample(question.id, _place(folder, question.image), word(question.text, prompt), task, question.label)
        for task, path in files.items()
        for question in read_questions(path, task)
    ]
    kept, left_out = keep_pictured(samples, folder, missing)
    sources = {str(path): file_sha256(path) for path in files.values()}
    return Benchmark(f"mme {tasks}", "mme", kept, folder, sources=sources, notes=tuple(left_out))


def word(text: str, prompt: str) -> str:
    """A question as a project asks it."""
    after = PROMPTS[prompt]
    return text if after is None else text.removesuffix(ENDING).rstrip() + after


def _place(folder: PictureFolder, image: str) -> str:
    task, name = image.split("/", maxsplit=1)
    inner = f"{task}/images/{name}"
    return inner if os.path.isfile(folder(inner)) else image


class MmeSource:
    """`mgap run mme`."""

    keys = frozenset({"tasks"})
    datasets = ("mme",)
    max_new_tokens = 16

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        return read_mme(
            find_data("mme", keys.data),
            str(keys.images),
            tasks=keys.tasks,
            prompt=keys.prompt or "mme",
            missing=keys.missing,
        )
