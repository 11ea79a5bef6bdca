"""HallusionBench's published file (Guan et al., CVPR 2024): yes/no questions about pictures, edited ones, or none.

    category/subcategory/set/figure/question     a question's id, such as VD/illusion/0/1/2
    figure    all questions about one picture; figure 0 is the original picture in VD, and no picture in VS
    pair      one question about every figure of its set

`visual_input` is 0 without a picture, 1 for an original and 2 for an edited one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.picture_folder import PictureFolder, keep_pictured
from mgap.benchmarks.published_files import find_data
from mgap.benchmarks.yesno_questions import refuse_repeats
from mgap.errors import BenchmarkError
from mgap.io.atomic_files import file_sha256
from mgap.io.record_files import FilePath, FileRow, field, identifier, read_rows
from mgap.settings import check_choice
from mgap.types import Sample

FILE = "HallusionBench.json"
CATEGORIES = ("VD", "VS")  # visual dependent, visual supplement
PICTURES = ("all", "only")  # only: the questions without a picture are left out, as VLMEvalKit and lmms-eval do
PROMPTS = {"question": "", "yes-or-no": " Please answer yes or no."}  # the words after the question
PARTS = ("category", "subcategory", "set_id", "figure_id", "question_id")  # the parts of an id
_LABELS = {"0": "no", "1": "yes"}
_NEEDED = f"a question has {', '.join(PARTS)}, question, visual_input (0, 1 or 2), gt_answer (0 or 1) and filename"


class HallusionQuestion(NamedTuple):
    """One question of the file."""

    id: str
    text: str
    label: str  # yes or no
    visual_input: int
    image: str  # such as VD/illusion/0_0.png; "" without a picture


class QuestionId(NamedTuple):
    """A question's id in parts."""

    category: str
    subcategory: str
    set: str
    figure: str
    question: str

    @classmethod
    def of(cls, name: str) -> QuestionId:
        return cls(*name.split("/"))

    @property
    def whole_set(self) -> str:
        return "/".join(self[:3])

    @property
    def pair(self) -> str:
        return f"{self.whole_set}/*/{self.question}"

    @property
    def whole_figure(self) -> str | None:
        """None in VS without a picture: no figure."""
        return None if self.category == "VS" and self.figure == "0" else "/".join(self[:4])


def read_file(folder: FilePath) -> list[HallusionQuestion]:
    """Every question of the file in this folder; refuses what a question must not be."""
    path = Path(folder) / FILE
    rows = read_rows(path)
    questions = [_question(path, row) for row in rows]
    refuse_repeats(path, rows, [question.id for question in questions], "ids")
    return questions


def id_of(path: FilePath, row: FileRow, needed: str) -> str:
    """The id of a record that has its parts."""
    parts = [identifier(path, row, name, needed) for name in PARTS]
    if parts[0] not in CATEGORIES or any("/" in part for part in parts):
        raise BenchmarkError(f"{path} {row.where}: {'/'.join(parts)!r:.80} is no id: category is VD or VS, no part has a slash")
    return "/".join(parts)


def _question(path: Path, row: FileRow) -> HallusionQuestion:
    shown, label = identifier(path, row, "visual_input", _NEEDED), identifier(path, row, "gt_answer", _NEEDED)
    has_file = row.data.get("filename") is not None
    if shown not in ("0", "1", "2") or label not in _LABELS or has_file != (shown != "0"):
        raise BenchmarkError(
            f"{path} {row.where}: visual_input {shown!r}, gt_answer {label!r} and filename {row.data.get('filename')!r:.60}; "
            f"{_NEEDED}, which is null where visual_input is 0"
        )
    name = id_of(path, row, _NEEDED)
    image = ""
    if has_file:  # ./VD/illusion/0_0.png, in some releases with a folder before it
        image = "/".join(PurePosixPath(field(path, row, "filename", _NEEDED)).parts[-3:])
    return HallusionQuestion(name, field(path, row, "question", _NEEDED), _LABELS[label], int(shown), image)


def samples_of(questions: Iterable[HallusionQuestion], after: str = "") -> list[Sample]:
    """The questions, with these words after each, scored by category."""
    return [Sample(q.id, q.image, q.text + after, QuestionId.of(q.id).category, q.label) for q in questions]


def read_hallusionbench(
    folder: FilePath, images: FilePath, *, pictures: str = "all", prompt: str = "question", missing: str = "refuse"
) -> Benchmark:
    """The questions of the file in `folder` about the pictures in `images`, which lie as in the published archive.

    `pictures="only"` leaves out the questions without one. Missing pictures are refused; with missing="skip" what asks about
    them is left out, with a note.
    """
    check_choice("pictures", pictures, PICTURES)
    questions = read_file(folder)
    samples = samples_of(questions, PROMPTS[check_choice("prompt", prompt, PROMPTS)])
    place = PictureFolder(images)
    kept, notes = keep_pictured([sample for sample in samples if sample.image or pictures == "all"], place, missing)
    if unshown := len(samples) - sum(bool(sample.image) for sample in samples):
        fate = "asked as text alone" if pictures == "all" else "left out"
        notes = [f"{unshown} questions of the file come without a picture, and are {fate}", *notes]
    lexicon = {"pictures": pictures, "prompt": prompt, "visual_input": {q.id: q.visual_input for q in questions}}
    path = Path(folder) / FILE
    return Benchmark(
        "hallusionbench", "hallusionbench", kept, place, lexicon, sources={str(path): file_sha256(path)}, notes=tuple(notes)
    )


class HallusionBenchSource:
    """`mgap run hallusionbench`."""

    keys = frozenset({"pictures"})
    datasets = ("hallusionbench",)
    max_new_tokens = 128  # as the authors' and lmms-eval's

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        return read_hallusionbench(
            find_data("hallusionbench", keys.data),
            str(keys.images),
            pictures=keys.pictures,
            prompt=keys.prompt or "question",
            missing=keys.missing,
        )
