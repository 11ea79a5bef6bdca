"""AMBER's published files (Wang et al., 2023): queries about 1,004 pictures, and their annotations.

A folder has annotations.json, relation.json, safe_words.txt and query/query_all.json, directly, in data/ as in a clone of the
project, or in amber/. `mgap fetch amber` downloads them; the pictures must be downloaded by hand (docs/benchmarks/data.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.picture_folder import PictureFolder, keep_pictured
from mgap.benchmarks.published_files import find_data
from mgap.errors import BenchmarkError, SettingError
from mgap.io.atomic_files import file_sha256
from mgap.io.images import ImageSource
from mgap.io.record_files import FilePath, FileRow, field, read_json, read_rows, read_text
from mgap.types import Sample

ANNOTATIONS, RELATION, SAFE_WORDS, QUERIES = "annotations.json", "relation.json", "safe_words.txt", "query/query_all.json"
FILES = (ANNOTATIONS, RELATION, SAFE_WORDS, QUERIES)

GENERATIVE = "generative"
_ATTRIBUTES = ("attribute-state", "attribute-number", "attribute-action")
_GROUPS = {  # by the type in the annotations; any other type is a relation
    "generative": GENERATIVE,
    "discriminative-hallucination": "existence",
    **{f"discriminative-{name}": name for name in _ATTRIBUTES},
}
KINDS = {  # AMBER's letters for its tasks
    "a": (GENERATIVE, "existence", *_ATTRIBUTES, "relation"),
    "g": (GENERATIVE,),
    "d": ("existence", *_ATTRIBUTES, "relation"),
    "de": ("existence",),
    "da": _ATTRIBUTES,
    "dr": ("relation",),
}
_IN_DETAIL = ("Please help me describe the image in detail.", "{} Please answer this question with one word.")
PROMPTS = {  # for descriptions and for questions, by project; {} is the published query
    "original": ("{}", "{}"),
    "haltrapper": _IN_DETAIL,
    "mgap": _IN_DETAIL,
}
_QUERY = "a query has id, image and query"
_ANNOTATION = "an annotation has id, type and truth, and hallu for a description"


def read_amber(
    source: FilePath,
    images: FilePath | None = None,
    *,
    kinds: str | Iterable[str] = "a",
    prompt: str = "original",
    missing: str = "refuse",
) -> Benchmark:
    """Read the samples of some kinds, such as "a", "g,de" or ("g", "de"); their ids are AMBER's.

    a: everything, g: descriptions, d: all questions, de, da, dr: questions on existence, attributes, relations. `images` is the
    folder of the pictures; scoring existing answers does not need it.
    """
    kinds = kinds.split(",") if isinstance(kinds, str) else list(kinds)
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        raise SettingError(f"unknown kind {wrong[0]!r} of AMBER: choose from {', '.join(KINDS)}")
    if prompt not in PROMPTS:
        raise SettingError(f"unknown prompt {prompt!r} of AMBER: choose from {', '.join(PROMPTS)}")
    folder = _find(Path(source))
    groups = {group for kind in kinds for group in KINDS[kind]}
    samples = tuple(sample for sample in _samples(folder, PROMPTS[prompt]) if sample.group in groups)
    name, notes = f"amber {','.join(kinds)}", list[str]()
    if not samples:
        raise BenchmarkError(f"{folder / QUERIES}: asks nothing of kind {', '.join(kinds)}; choose another kind")
    if images is not None:
        samples, notes = keep_pictured(samples, PictureFolder(images), missing)
    picture = _no_picture if images is None else PictureFolder(images)
    sources = {str(folder / file): file_sha256(folder / file) for file in FILES}
    return Benchmark(name, "amber", samples, picture, _lexicon(folder), sources, tuple(notes))


def _no_picture(name: str) -> ImageSource:
    raise BenchmarkError(f"{name}: no folder of pictures was named when AMBER was read; give images")


def _find(source: Path) -> Path:
    for folder in (source, source / "data", source / "amber"):
        if (folder / ANNOTATIONS).is_file():
            if absent := [file for file in FILES if not (folder / file).is_file()]:
                raise BenchmarkError(f"{folder}: no {absent[0]} in it; take all of AMBER's files from one place")
            return folder
    raise BenchmarkError(f"{source}: no {ANNOTATIONS} in it; name a folder with AMBER's files, or fetch them: mgap fetch amber")


def _samples(folder: Path, prompt: tuple[str, str]) -> Iterator[Sample]:
    truths = _by_id(folder / ANNOTATIONS, _ANNOTATION)
    for number, query in _by_id(folder / QUERIES, _QUERY).items():
        if number not in truths:
            raise BenchmarkError(f"{folder / QUERIES} {query.where}: id {number} is not in {ANNOTATIONS}")
        annotation = truths[number]
        group = _GROUPS.get(field(folder / ANNOTATIONS, annotation, "type", _ANNOTATION), "relation")
        text = prompt[group != GENERATIVE].format(field(folder / QUERIES, query, "query", _QUERY))
        image = field(folder / QUERIES, query, "image", _QUERY)
        yield Sample(str(number), image, text, group, _truth(folder / ANNOTATIONS, annotation, group))


def _by_id(path: Path, allowed: str) -> dict[int, FileRow]:
    rows: dict[int, FileRow] = {}
    for row in read_rows(path):
        number = row.data.get("id")
        if not isinstance(number, int) or isinstance(number, bool):
            raise BenchmarkError(f"{path} {row.where}: id is {number!r}, and must be a whole number; {allowed}")
        if number in rows:
            raise BenchmarkError(f"{path} {row.where}: id {number} stands at {rows[number].where} already; keep one of them")
        rows[number] = row
    return rows


def _truth(path: Path, annotation: FileRow, group: str) -> Any:
    if group != GENERATIVE:
        truth = annotation.data.get("truth")
        if truth not in ("yes", "no"):
            raise BenchmarkError(f"{path} {annotation.where}: truth is {truth!r}, and a question's is yes or no")
        return truth
    lists = {name: annotation.data.get(name) for name in ("truth", "hallu")}
    for name, words in lists.items():
        if not _are_words(words):
            raise BenchmarkError(f"{path} {annotation.where}: {name} is {words!r}, and must be a list of words; {_ANNOTATION}")
    return lists


def _lexicon(folder: Path) -> Mapping[str, Any]:
    path = folder / RELATION
    relation = read_json(path)
    if not isinstance(relation, dict) or not all(map(_are_words, relation.values())):
        raise BenchmarkError(f"{path}: not an object with a list of words for each object; fetch it again")
    return {"relation": relation, "safe_words": read_text(folder / SAFE_WORDS).split()}


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


class AmberSource:
    """`mgap run amber`."""

    keys = frozenset({"kinds"})
    datasets = ("amber",)
    max_new_tokens = 512

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        folder = find_data("amber", keys.data)
        return read_amber(folder, str(keys.images), kinds=keys.kinds, prompt=keys.prompt or "mgap", missing=keys.missing)
