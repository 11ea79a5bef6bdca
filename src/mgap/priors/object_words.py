"""Object words: which objects a text mentions, and where.

The built-in list, `coco.txt`, has COCO's 80 classes with the synonyms of CHAIR (Rohrbach et al., 2018; BSD-2-Clause), without
its misspellings and repeats. Your own list has the same form: one object per line, first the name to report, then its
synonyms, separated by commas. Plurals are found automatically. This is not a scorer: it does not tag and lemmatise as CHAIR
does, so `seated` is no chair and `men` are persons.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from mgap.errors import SettingError
from mgap.io.regular_files import NotRegular, read_regular

Words = str | Sequence[str] | Mapping[str, Sequence[str]]  # from users: "coco", a file, names, or names with synonyms
_IRREGULAR = {"person": "people", "child": "children", "mouse": "mice", "goose": "geese", "ox": "oxen", "foot": "feet"}


class Mention(NamedTuple):
    """One mention of an object in a text."""

    name: str
    start: int  # in characters


class Vocabulary:
    """Object names with their synonyms. A name always means itself; a synonym of several objects means the first."""

    def __init__(self, synonyms: Mapping[str, Sequence[str]]) -> None:
        self.synonyms = {_clean(name): tuple(map(_clean, _listed(words))) for name, words in synonyms.items()}
        if not self.synonyms:
            raise SettingError("a vocabulary without words finds nothing: name at least one thing")
        self._names = {
            form: name for name in reversed(self.synonyms) for word in self.synonyms[name] for form in (word, plural(word))
        }  # by word
        self._names.update({plural(name): name for name in self.synonyms})
        self._names.update({name: name for name in self.synonyms})
        longest_first = sorted(map(re.escape, self._names), key=len, reverse=True)  # a hot dog is no dog
        self._pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(longest_first)})(?![\w-])", re.IGNORECASE)

    @classmethod
    def of(cls, words: Words) -> Vocabulary:
        """From "coco", the path of a file, names, or names with synonyms."""
        if isinstance(words, str):
            return cls(dict(_read(words)))
        if isinstance(words, Mapping):
            return cls({name: (given,) if isinstance(given, str) else given or () for name, given in words.items()})
        if not isinstance(words, Sequence):
            raise SettingError(f"vocabulary={words!r}: give coco, a file with a thing a line, or a list of words")
        return cls(dict.fromkeys(map(_clean, words), ()))

    @property
    def names(self) -> list[str]:
        return list(self.synonyms)

    def mentions(self, text: str) -> list[Mention]:
        """All mentions in the order of the text, including repeats."""
        matches = ((match.group().lower(), match.start()) for match in self._pattern.finditer(text))
        # IGNORECASE also matches a few letters that lower() does not map, such as the long s; those words are skipped
        return [Mention(self._names[word], start) for word, start in matches if word in self._names]

    def first_mentions(self, text: str) -> dict[str, int]:
        """The start of each object's first mention, in the order of the text."""
        starts: dict[str, int] = {}
        for name, start in self.mentions(text):
            starts.setdefault(name, start)
        return starts


def _read(source: str) -> Iterator[tuple[str, list[str]]]:
    if source == "coco":
        text = files("mgap.priors").joinpath("coco.txt").read_text(encoding="utf-8")
    elif os.path.exists(source) and not os.path.isdir(source):  # Path.exists raises on a name that is too long
        try:
            text = read_regular(source).decode("utf-8-sig")
        except NotRegular as error:
            raise SettingError(str(error)) from None
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
    """The plural; of several words, the last one changes."""
    head, space, last = word.rpartition(" ")
    if last in _IRREGULAR:
        form = _IRREGULAR[last]
    elif last.endswith("man"):
        form = f"{last[:-3]}men"
    elif re.search(r"[^aeiou]y$", last):
        form = f"{last[:-1]}ies"
    elif re.search(r"(?:[^f]fe|[ae]lf|ief)$", last):
        form = f"{last.removesuffix('e').removesuffix('f')}ves"
    elif re.search(r"(?:s|x|z|ch|sh)$", last):
        form = f"{last}es"
    else:
        form = f"{last}s"
    return f"{head}{space}{form}"
