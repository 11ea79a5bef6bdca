"""Build POPE questions for any annotated pictures (Li et al., EMNLP 2023).

For each sampled picture, the questions are about its first objects, each followed by an absent one: any (random), the most
frequent (popular), or the one that most often occurs with the object just asked about (adversarial). Frequencies are counted
over the sampled pictures only. Unlike the published builder, sampling is seeded, and only the article changes before a vowel,
so that no "imange" is written.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.yesno_questions import YesNoQuestion, refuse_repeats
from mgap.errors import BenchmarkError, SettingError
from mgap.io.record_files import FilePath, field, read_rows

_NEEDED = 'a record is such as {"image": "street.jpg", "objects": ["car", "person", "dog"]}'


class Annotated(NamedTuple):
    """A picture and its objects, without repeats."""

    image: str
    objects: tuple[str, ...]


def read_annotations(path: FilePath) -> tuple[list[Annotated], list[str]]:
    """Read JSON lines or a JSON array; also returns a note on objects that are listed twice."""
    pictures, repeats = [], 0
    rows = read_rows(path)
    for row in rows:
        image, objects = field(path, row, "image", _NEEDED), row.data.get("objects")
        if not isinstance(objects, list) or not all(isinstance(name, str) and name.strip() for name in objects):
            raise BenchmarkError(f"{path} {row.where}: objects is {objects!r:.60}, no list of names; {_NEEDED}")
        unique = tuple(dict.fromkeys(name.strip() for name in objects))
        repeats += len(unique) < len(objects)
        pictures.append(Annotated(image, unique))
    refuse_repeats(path, rows, [picture.image for picture in pictures], "pictures")
    return pictures, [f"{path}: {repeats} pictures list an object more than once, and it counts once"] if repeats else []


def build_pope(
    pictures: Sequence[Annotated], *, per_image: int = 3, count: int = 500, seed: int = 0
) -> dict[str, list[YesNoQuestion]]:
    """The questions of the three splits about the same pictures; one generator serves the sampling, then each split in turn."""
    if per_image < 1 or count < 1:
        raise SettingError(f"per_image={per_image} and count={count} must be at least 1")
    enough = [picture for picture in pictures if len(picture.objects) >= per_image]
    if len(enough) < count:
        raise BenchmarkError(
            f"{len(enough)} of {len(pictures)} pictures have at least {per_image} objects, and {count} are to be drawn; "
            "lower count or per_image"
        )
    generator = random.Random(seed)
    drawn = generator.sample(enough, count)
    return {split: _ask(split, drawn, per_image, generator) for split in SPLITS}


def frequencies(drawn: Iterable[Annotated]) -> dict[str, int]:
    """The number of pictures with each object, in order of first appearance."""
    return dict(Counter(name for picture in drawn for name in picture.objects))


def companions(drawn: Iterable[Annotated]) -> dict[str, list[str]]:
    """For each object, those that occur with it, most frequent first; ties in order of first appearance."""
    cooccurring: dict[str, Counter[str]] = {}
    for picture in drawn:
        for name in picture.objects:
            cooccurring.setdefault(name, Counter()).update(other for other in picture.objects if other != name)
    return {name: _ranked(counts) for name, counts in cooccurring.items()}


def ask_for(name: str) -> str:
    return f"Is there {'an' if name[0].lower() in 'aeiou' else 'a'} {name} in the image?"


def to_lines(questions: Iterable[YesNoQuestion]) -> str:
    """The questions in the published format: JSON lines."""
    records: Iterable[dict[str, Any]] = (
        {"question_id": int(q.id), "image": q.image, "text": q.text, "label": q.label} for q in questions
    )
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _ask(split: str, drawn: Sequence[Annotated], per_image: int, generator: random.Random) -> list[YesNoQuestion]:
    counts, cooccurring = frequencies(drawn), companions(drawn)
    everything, popular = list(counts), _ranked(counts)
    questions: list[YesNoQuestion] = []
    for picture in drawn:
        taken = set(picture.objects)
        if len(everything) < len(taken) + per_image:
            raise BenchmarkError(
                f"{picture.image} shows {len(taken)} of the {len(everything)} objects of the drawn pictures: there are no "
                f"{per_image} others to ask about; draw more pictures, or lower per_image"
            )
        for present in picture.objects[:per_image]:
            ranking = {"random": [], "popular": popular, "adversarial": cooccurring[present]}[split]
            absent = next((name for name in ranking if name not in taken), None)
            while absent is None or absent in taken:  # the random split, or an exhausted ranking
                absent = generator.choice(everything)
            taken.add(absent)
            for name, label in ((present, "yes"), (absent, "no")):
                questions.append(YesNoQuestion(str(len(questions) + 1), picture.image, ask_for(name), label))
    return questions


def _ranked(counts: dict[str, int]) -> list[str]:
    return sorted(counts, key=lambda name: -counts[name])  # a stable sort
