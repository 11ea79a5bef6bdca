"""Evidence about samples: other pictures, or another prompt; in a file, in a mapping, or brought by a callable.

A file has a JSON object a line, beside the pictures it names (docs/methods/given.md):

    {"image": "street.jpg", "prompt": null, "pictures": ["t2i/street_0.png", "t2i/street_1.png"]}
    {"image": "park.jpg", "prompt": "Is there a dog?", "objects": ["bench", "bird"]}

Everything that can be wrong with it is an error on loading, with the number of the line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from mgap.backbones.asked_rows import Asked
from mgap.errors import CorruptFile, SettingError
from mgap.io.images import ImageSource
from mgap.io.regular_files import NotRegular, read_regular
from mgap.io.strict_json import parse_json

FILE = "evidence.jsonl"  # the file's name where a folder is given
KEYS = ("image", "prompt", "pictures", "text", "objects")
KINDS = KEYS[2:]  # a line has one of them
TEMPLATE = "This image contains {objects}. Based on this, {prompt}"


@dataclass(frozen=True)
class Evidence:
    """What the branches of one sample see: other pictures under its prompt, or its picture under another prompt."""

    pictures: tuple[ImageSource, ...] = ()
    text: str | None = None

    def __post_init__(self) -> None:
        pictures: Any = self.pictures  # from users
        if not isinstance(pictures, Sequence) or isinstance(pictures, str):
            raise SettingError(f"pictures={pictures!r:.60} must be a list of pictures or their paths")
        object.__setattr__(self, "pictures", tuple(pictures))
        if bad := [one for one in pictures if not isinstance(one, str | PathLike | Image.Image)]:
            raise SettingError(f"pictures has {bad[0]!r:.60}: give pictures or their paths")
        if self.text is not None and (not isinstance(self.text, str) or not self.text.strip()):
            raise SettingError(f"text={self.text!r:.60} must be a prompt in words")
        if bool(self.pictures) == (self.text is not None):
            raise SettingError("evidence is either pictures or a text: give one of them")


@dataclass(frozen=True)
class Box:
    """A thing that a detector found; sides are shares of the picture, from 0 at the left and at the top to 1."""

    word: str
    score: float
    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)


class Brings(Protocol):
    """What the method calls before the first token, once for each sample that it has not seen."""

    def __call__(self, asked: Sequence[Asked], /) -> Sequence[Evidence | None]:
        """One for each sample; None: there is none."""
        ...


class Detects(Protocol):
    """A detector of things that are given in words."""

    def __call__(self, pictures: Sequence[Image.Image], words: Sequence[Sequence[str]], /) -> Sequence[Sequence[Box]]:
        """For each picture, boxes of those of its words that it found."""
        ...


class Draws(Protocol):
    """A text-to-image model."""

    def __call__(self, texts: Sequence[str], count: int, seed: int, /) -> Sequence[Sequence[Image.Image]]:
        """For each text, `count` pictures; the same for the same seed."""
        ...


@dataclass(frozen=True)
class EvidenceLine:
    """A line of an evidence file: what there is about one picture, for one prompt or for all."""

    image: str  # the picture's name in the benchmark, or its file's
    prompt: str | None = None  # None: any
    pictures: tuple[ImageSource, ...] = ()
    text: str | None = None
    objects: tuple[str, ...] | None = None  # to be written into the prompt
    source: ImageSource | None = None  # the picture itself, where it is at hand: found by its pixels without a name

    def evidence(self, prompt: str | None, template: str) -> Evidence | None:
        """For a sample with this prompt; None if the prompt is needed and not known."""
        if self.objects is None:
            return Evidence(self.pictures, self.text)
        prompt = self.prompt if prompt is None else prompt
        return None if prompt is None else Evidence(text=write_objects(self.objects, prompt, template))


@dataclass(frozen=True)
class EvidenceTable:
    """Evidence about samples that are known beforehand."""

    lines: tuple[EvidenceLine, ...]
    path: str = ""  # of its file
    sha256: str = ""
    by_sample: Mapping[tuple[str, str | None], EvidenceLine] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_sample", {(line.image, line.prompt): line for line in self.lines})
        if len(self.by_sample) < len(self.lines):
            raise SettingError("evidence for one picture and prompt is given twice: leave one out")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> EvidenceTable:
        """Read a file, or the evidence.jsonl of a folder."""
        place = os.path.join(path, FILE) if os.path.isdir(path) else os.fspath(path)
        if not os.path.exists(place):
            raise SettingError(f"evidence={place!r:.200}: no such file; name a file of JSON lines, or a folder with {FILE}")
        try:
            data = read_regular(place)
            text = data.decode("utf-8-sig")
        except NotRegular:
            raise
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptFile(f"{place}: cannot be read as UTF-8 text ({error}); save it again") from None
        lines: dict[tuple[str, str | None], tuple[int, EvidenceLine]] = {}
        for number, written in enumerate(text.split("\n"), start=1):
            if written.strip():
                line = _Reader(Path(place), number).line(written)
                first = lines.setdefault((line.image, line.prompt), (number, line))[0]
                if first != number:
                    raise CorruptFile(f"{place} line {number}: the same picture and prompt as in line {first}; leave one out")
        if not lines:
            raise CorruptFile(f"{place}: no evidence in it; write a JSON object a line")
        return cls(tuple(line for _, line in lines.values()), place, hashlib.sha256(data).hexdigest())

    @classmethod
    def of(cls, given: Mapping[Any, Evidence]) -> EvidenceTable:
        """From evidence by a picture's name, or by its name and the prompt."""
        lines = []
        for key, evidence in given.items():
            image, prompt = (key, None) if isinstance(key, str) else key if _is_pair(key) else (None, None)
            if not isinstance(image, str) or not isinstance(evidence, Evidence):
                held = f"evidence holds {type(evidence).__name__} under {key!r:.60}"
                raise SettingError(f"{held}: give Evidence by a picture's name, or by its name and a prompt")
            lines.append(EvidenceLine(image, prompt, evidence.pictures, evidence.text))
        if not lines:
            raise SettingError("evidence is empty: give some, or leave the method off")
        return cls(tuple(lines))

    def find(self, image: str, prompt: str | None) -> EvidenceLine | None:
        """The line for exactly this prompt first, then the one for any."""
        return self.by_sample.get((image, prompt)) or self.by_sample.get((image, None))

    @property
    def has_objects(self) -> bool:
        return any(line.objects is not None for line in self.lines)


def read_evidence(given: Any) -> EvidenceTable | Brings:
    """The setting `evidence`: a file or folder, a mapping, a table or a callable."""
    if isinstance(given, EvidenceTable):
        return given
    if isinstance(given, str | PathLike):
        return EvidenceTable.load(given)
    if isinstance(given, Mapping):
        return EvidenceTable.of(given)
    if not callable(given):
        raise SettingError(f"evidence={given!r:.60} must be a file of JSON lines, a mapping, or a callable")
    brings: Brings = given
    return brings


def check_template(template: str) -> str:
    """Refuse a template without its two places."""
    try:
        written = template.format(objects="\0", prompt="\1")
    except (AttributeError, IndexError, KeyError, ValueError):
        written = ""
    if "\0" not in written or "\1" not in written:
        raise SettingError(f"template={template!r:.60} must be a text with {{objects}} and {{prompt}} in it")
    return template


def write_objects(objects: Sequence[str], prompt: str, template: str = TEMPLATE) -> str:
    """The prompt with a list of objects; the prompt itself for none."""
    if not objects:
        return prompt
    *others, last = objects
    listed = f"{', '.join(others)}{',' * (len(others) > 1)} and {last}" if others else last
    return template.format(objects=listed, prompt=prompt[:1].lower() + prompt[1:])


@dataclass(frozen=True)
class _Reader:
    """Reads one line of a file, and says where it is wrong."""

    path: Path
    number: int

    def line(self, written: str) -> EvidenceLine:
        try:
            data = parse_json(written)
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"no JSON ({error})") from None
        if not isinstance(data, dict):
            raise self.wrong("no JSON object")
        if unknown := [key for key in data if key not in KEYS]:
            raise self.wrong(f"no such key as {unknown[0]!r:.60}; a line has {', '.join(KEYS)}")
        kinds = [kind for kind in KINDS if data.get(kind) is not None]
        if len(kinds) != 1:
            raise self.wrong(f"{' and '.join(kinds) or 'none'} of {', '.join(KINDS)}; a line has one of them")
        image, prompt = self.words(data, "image"), None if data.get("prompt") is None else self.words(data, "prompt")
        source = self.below(image)
        return EvidenceLine(
            image,
            prompt,
            tuple(self.picture(name) for name in self.listed(data, "pictures", least=1)),
            None if data.get("text") is None else self.words(data, "text"),
            None if data.get("objects") is None else tuple(self.listed(data, "objects", least=0)),
            source if os.path.isfile(source) else None,
        )

    def words(self, data: Mapping[str, Any], key: str) -> str:
        value = data.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{key} is {value!r:.60}; write it as a text")
        return value

    def listed(self, data: Mapping[str, Any], key: str, least: int) -> list[str]:
        values = data.get(key)
        if values is None:
            return []
        if not isinstance(values, list) or len(values) < least or not all(isinstance(v, str) and v.strip() for v in values):
            raise self.wrong(f"{key} is {values!r:.60}; write a list of texts")
        return values

    def picture(self, name: str) -> str:
        path = self.below(name)
        if not os.path.isfile(path):
            raise self.wrong(f"there is no picture {name!r:.200} in {self.path.parent}")
        return path

    def below(self, name: str) -> str:
        """The path of a name in the file's folder; refuses one that leads out of it, through a link too."""
        folder = os.path.realpath(self.path.parent)
        try:
            path = os.path.realpath(os.path.join(folder, name))
        except ValueError:  # a name that no file can have
            raise self.wrong(f"{name!r:.200} is no file's name") from None
        if os.path.isabs(name) or os.path.commonpath([folder, path]) != folder:
            raise self.wrong(f"{name!r:.200} is not inside {self.path.parent}; name pictures by their place in that folder")
        return path

    def wrong(self, what: str) -> CorruptFile:
        return CorruptFile(f"{self.path} line {self.number}: {what}")


def _is_pair(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str)
