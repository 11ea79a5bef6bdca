"""A user's own yes/no questions: JSON lines or CSV with image, question and label, and optionally id and group."""

from __future__ import annotations

from pathlib import Path

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.picture_folder import PictureFolder, keep_pictured
from mgap.benchmarks.pope.questions import suffix
from mgap.benchmarks.yesno_questions import read_labels, refuse_repeats
from mgap.errors import BenchmarkError
from mgap.io.atomic_files import file_sha256
from mgap.io.record_files import FilePath, field, identifier, read_rows
from mgap.types import Sample

COLUMNS = ("image", "question", "label")
OPTIONAL = ("id", "group")
_NEEDED = f"a record has {', '.join(COLUMNS)}, and may have {' and '.join(OPTIONAL)}"


def read_own(
    path: FilePath,
    images: FilePath | None = None,
    *,
    prompt: str = "question",
    missing: str = "refuse",
    has_labels: bool = True,
) -> Benchmark:
    """Questions are scored by group, or all together if they have none. Pictures are in `images`, or next to the file.

    Without ids, a question's id is its number in the file. With `has_labels=False`, labels are not needed and not read: every
    truth is None.
    """
    after = suffix(prompt)
    rows = read_rows(path)
    columns = COLUMNS if has_labels else COLUMNS[:2]
    for row in rows:
        if absent := [name for name in columns if name not in row.data]:
            present = ", ".join(map(repr, row.data)) or "nothing"
            raise BenchmarkError(f"{path} {row.where}: no {absent[0]!r} among {present}; {_NEEDED}")
    labels: list[str] | list[None] = [None] * len(rows)
    notes: list[str] = []
    if has_labels:
        labels, notes = read_labels(path, rows)
    has_ids = any("id" in row.data for row in rows)
    ids = [identifier(path, row, "id", _NEEDED) if has_ids else str(number) for number, row in enumerate(rows, start=1)]
    refuse_repeats(path, rows, ids, "ids")
    has_groups = any("group" in row.data for row in rows)
    samples = [
        Sample(
            id=name,
            image=field(path, row, "image", _NEEDED),
            prompt=field(path, row, "question", _NEEDED) + after,
            group=identifier(path, row, "group", _NEEDED) if has_groups else "all",
            truth=label,
        )
        for name, row, label in zip(ids, rows, labels, strict=True)
    ]
    if unused := sorted({name for row in rows for name in row.data} - {*columns, *OPTIONAL}):
        notes.append(f"{path}: not used: {', '.join(unused)}")
    folder = PictureFolder(Path(path).parent if images is None else images)
    kept, left_out = keep_pictured(samples, folder, missing)
    return Benchmark(Path(path).stem, "yesno", kept, folder, sources={str(path): file_sha256(path)}, notes=(*notes, *left_out))


class OwnSource:
    """`mgap run own`."""

    keys = frozenset({"questions"})
    datasets = ("coco",)
    max_new_tokens = 16

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        return read_own(str(keys.questions), str(keys.images), prompt=keys.prompt or "question", missing=keys.missing)
