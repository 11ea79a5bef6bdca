"""POPE's published question files (Li et al., EMNLP 2023): COCO, A-OKVQA and GQA, three splits each.

Both formats are read: JSON lines and an array. The published builder writes "imange" for "image" where it turns "a" into "an";
this is corrected, with a note. The words after the question change the figures more than most methods do, so every published
variant has a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.picture_folder import PictureFolder, keep_pictured
from mgap.benchmarks.published_files import find_data
from mgap.benchmarks.yesno_questions import YesNoQuestion, read_labels, refuse_repeats
from mgap.errors import BenchmarkError, SettingError
from mgap.io.atomic_files import file_sha256
from mgap.io.record_files import FilePath, field, identifier, read_rows
from mgap.types import Sample

SPLITS = ("random", "popular", "adversarial")
_ONE_WORD = " Please answer this question with one word."
_SINGLE_WORD = "\nAnswer the question using a single word or phrase."
_SAME_LINE = f" {_SINGLE_WORD.strip()}"
PLEASE = {  # one more sentence, by the name of the control
    "yes-please": " Answer yes whenever possible.",  # cd_rethink's, as its code has it and not its README
    "no-please": " Answer no whenever possible.",  # the same the other way: ours
}
PROMPTS = {  # the words after the question, by project
    "question": "",
    "original": "",
    "llava": _SINGLE_WORD,
    "lmms_eval": _SINGLE_WORD,
    "lmms_eval-concise": "\nYour response must be concise.",
    "vcd": _ONE_WORD,
    "vcd-qwen": " Answer:",
    "opera": "",
    "avisc": "",
    "deco": "",
    "mod": "",
    "mgap": "",
    "cd_rethink": _SAME_LINE,
    **{name: _SAME_LINE + sentence for name, sentence in PLEASE.items()},
}
_NAME = re.compile(r"(?P<dataset>.+?)_(?:re)?pope_(?:seem_)?(?P<split>.+)\.jsonl?")
_NEEDED = "a question has question_id, image, text and label"


def read_questions(path: FilePath) -> tuple[list[YesNoQuestion], list[str]]:
    """The questions of one file, and a note on everything that was corrected."""
    rows = read_rows(path)
    labels, notes = read_labels(path, rows)
    questions, corrected = [], 0
    for row, label in zip(rows, labels, strict=True):
        text = field(path, row, "text", _NEEDED)
        clean = correct_imange(text)
        corrected += clean != text
        name, image = identifier(path, row, "question_id", _NEEDED), field(path, row, "image", _NEEDED)
        questions.append(YesNoQuestion(name, image, clean, label))
    refuse_repeats(path, rows, [question.id for question in questions], "question ids")
    if corrected:
        notes.append(f'{path}: "imange" is read as "image" in {corrected} questions')
    if twice := len(questions) - len({(question.image, question.text) for question in questions}):
        notes.append(f"{path}: {twice} questions are asked a second time about the same picture, and counted each time")
    return questions, notes


def correct_imange(text: str) -> str:
    return re.sub(r"\bimange\b", "image", text)


def suffix(prompt: str) -> str:
    """The words after the question in this prompt."""
    if prompt not in PROMPTS:
        raise SettingError(f"unknown prompt {prompt!r}: choose from {', '.join(PROMPTS)}")
    return PROMPTS[prompt]


def find_files(
    source: FilePath | Sequence[FilePath], dataset: str = "coco", splits: Sequence[str] | None = None
) -> dict[str, Path]:
    """The file of every split: by the published names in a folder or its subfolder of the dataset, or the given files."""
    wanted = (splits,) if isinstance(splits, str) else splits
    if isinstance(source, str | PathLike):
        if not Path(source).is_dir():
            return find_files([source], dataset, splits)
        files = _search(Path(source), dataset)
        wanted = wanted or SPLITS
    else:
        files = {}
        for path in map(Path, source):
            split = split_of(path)
            if split in files:
                raise BenchmarkError(f"{path} and {files[split]} are both the split {split!r}: give one file a split")
            files[split] = path
    if not wanted:
        return files
    if absent := [split for split in wanted if split not in files]:
        raise BenchmarkError(f"{source}: no split {absent[0]!r} of {dataset}; there are {', '.join(files) or 'no files of it'}")
    return {split: files[split] for split in wanted}


def read_pope(
    source: FilePath | Sequence[FilePath],
    images: FilePath,
    *,
    dataset: str = "coco",
    splits: Sequence[str] | None = None,
    prompt: str = "question",
    missing: str = "refuse",
) -> Benchmark:
    """Read the splits of one dataset from a folder of the published files, or from given files; ids are "split/question_id".

    `images` is the folder of the pictures. Missing pictures are refused; with missing="skip" they are left out, with a note.
    """
    after = suffix(prompt)
    samples: list[Sample] = []
    notes: list[str] = []
    files = find_files(source, dataset, splits)
    for split, path in files.items():
        questions, corrections = read_questions(path)
        notes += corrections
        samples += [Sample(f"{split}/{q.id}", q.image, q.text + after, split, q.label) for q in questions]
    folder = PictureFolder(images)
    kept, left_out = keep_pictured(samples, folder, missing)
    sources: Mapping[str, str] = {str(path): file_sha256(path) for path in files.values()}
    return Benchmark(f"pope {dataset}", "yesno", kept, folder, sources=sources, notes=(*notes, *left_out))


class PopeSource:
    """`mgap run pope`."""

    keys = frozenset({"splits"})
    datasets = ("coco", "aokvqa", "gqa")
    max_new_tokens = 16

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        return read_pope(
            find_data("pope", keys.data),
            str(keys.images),
            dataset=keys.data_set,
            splits=keys.splits,
            prompt=keys.prompt or "question",
            missing=keys.missing,
        )


def _search(folder: Path, dataset: str) -> dict[str, Path]:
    """The files by split. Names with and without `_seem` are the same questions; the first one is used."""
    files: dict[str, dict[str, Path]] = {}
    for inner in (folder, folder / dataset, folder / "pope" / dataset):
        for path in sorted(inner.glob("*_pope_*.json*")):
            if match := _NAME.fullmatch(path.name):
                files.setdefault(match["dataset"], {}).setdefault(match["split"], path)
    if dataset not in files:
        names = sorted({*files, *(path.name for path in folder.iterdir() if any(path.glob("*_pope_*.json*")))})
        hint = f"there are {', '.join(names)}" if names else "a file is called such as coco_pope_random.json"
        raise BenchmarkError(f"{folder}: no POPE files of {dataset!r} in it; {hint}")
    return files[dataset]


def split_of(path: FilePath) -> str:
    """The split that a file's name claims, else its name."""
    path = Path(path)
    match = _NAME.fullmatch(path.name)
    return match["split"] if match else path.stem
