"""Words that name things: which things a text mentions, and where.

The list that ships with the package, `coco.txt`, holds COCO's 80 classes with the synonyms of CHAIR (Rohrbach et al., 2018;
BSD-2-Clause), spelling mistakes and repeats left out. A list of your own has the same form: a thing a line, the name that is
reported first, then other words for it, with commas between. Plurals are found by themselves. This is no scorer: CHAIR's own
tagging and lemmatising is not done, so `seated` is no chair and `men` are persons.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from mgap.errors import SettingError

Words = str | Sequence[str] | Mapping[str, Sequence[str]]  # as a user gives them: "coco", a file, names, names with synonyms
_IRREGULAR = {"person": "people", "child": "children", "mouse": "mice", "goose": "geese", "ox": "oxen", "foot": "feet"}


class Mention(NamedTuple):
    """One place in a text that names a thing."""

    name: str
    start: int  # in characters


class Vocabulary:
    """Names of things, each with other words for it; a name always means itself, other words the first that has them."""

    def __init__(self, things: Mapping[str, Sequence[str]]) -> None:
        self.synonyms = {_clean(name): tuple(map(_clean, _listed(words))) for name, words in things.items()}
        if not self.synonyms:
            raise SettingError("a vocabulary without words finds nothing: name at least one thing")
        self._meaning = {
            form: name for name in reversed(self.synonyms) for word in self.synonyms[name] for form in (word, plural(word))
        }
        self._meaning.update({plural(name): name for name in self.synonyms})
        self._meaning.update({name: name for name in self.synonyms})
        longest = sorted(map(re.escape, self._meaning), key=len, reverse=True)  # a hot dog is no dog
        self._pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(longest)})(?![\w-])", re.IGNORECASE)

    @classmethod
    def of(cls, words: Words) -> Vocabulary:
        """From "coco", the path of a file, names, or names with their synonyms."""
        if isinstance(words, str):
            return cls(dict(_read(words)))
        if isinstance(words, Mapping):
            return cls({name: (others,) if isinstance(others, str) else others or () for name, others in words.items()})
        if not isinstance(words, Sequence):
            raise SettingError(f"vocabulary={words!r}: give coco, a file with a thing a line, or a list of words")
        return cls(dict.fromkeys(map(_clean, words), ()))

    @property
    def names(self) -> list[str]:
        return list(self.synonyms)

    def mentions(self, text: str) -> list[Mention]:
        """In the order of the text, repeats kept."""
        found = ((match.group().lower(), match.start()) for match in self._pattern.finditer(text))
        # a few letters match another without being its capital, such as the long s: they make no word of the list
        return [Mention(self._meaning[word], start) for word, start in found if word in self._meaning]

    def first_mentions(self, text: str) -> dict[str, int]:
        """Where each thing is named for the first time, in that order."""
        places: dict[str, int] = {}
        for name, start in self.mentions(text):
            places.setdefault(name, start)
        return places


def _read(source: str) -> Iterator[tuple[str, list[str]]]:
    if source == "coco":
        text = files("mgap.priors").joinpath("coco.txt").read_text(encoding="utf-8")
    elif os.path.isfile(source):  # unlike Path's, false for a name that is too long
        try:
            text = Path(source).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise SettingError(f"{source}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    else:
        raise SettingError(f"vocabulary={source!r}: give coco, a file with a thing a line, or a list of words")
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",") if word.strip()]
        if words:
            yield words[0], words[1:]


def _listed(words: Sequence[str]) -> Sequence[str]:
    if not isinstance(words, Sequence):
        raise SettingError(f"{words!r} in a vocabulary names nothing: write a list of words")
    return words


def _clean(word: str) -> str:
    if not isinstance(word, str) or not word.strip():
        raise SettingError(f"{word!r} in a vocabulary names nothing: write a word")
    return " ".join(word.lower().split())


def plural(word: str) -> str:
    """Of the last of several words."""
    head, space, last = word.rpartition(" ")
    if last in _IRREGULAR:
        many = _IRREGULAR[last]
    elif last.endswith("man"):
        many = f"{last[:-3]}men"
    elif re.search(r"[^aeiou]y$", last):
        many = f"{last[:-1]}ies"
    elif re.search(r"(?:[^f]fe|[ae]lf|ief)$", last):
        many = f"{last.removesuffix('e').removesuffix('f')}ves"
    elif re.search(r"(?:s|x|z|ch|sh)$", last):
        many = f"{last}es"
    else:
        many = f"{last}s"
    return f"{head}{space}{many}"
