"""The words that a caption scorer looks for: classes, their synonyms, and pairs of words that count as one.

COCO's lexicon is that of the published CHAIR scorers, rebuilt from `coco.txt` with the mistakes that affect their figures: keys
that never match (a space before `motor bike` and `cheesecake`, the capital in `iPhone`), misspelt keys, and missing pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from mgap.errors import BenchmarkError
from mgap.io.record_files import read_json, read_text
from mgap.priors.object_words import Vocabulary

# WordNet's lemmas of some plurals: words of their own, the plural of `vas`, and one that taggers seldom recognise.
PUBLISHED_FORMS = {"men": "men", "people": "people", "vases": "vases", "geese": "geese", "sports": "sport"}

_UNMATCHED = {"motor bike", "cheesecake", "iphone", "necktie", "hair dryer"}
_MISSPELT = {"person": "solider", "knife": "knive", "tv": "televison", "cell phone": "phon"}
_ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "animal", "cub")
_PAIRS = {
    **{pair: pair for pair in ("motor bike", "home plate", "train track")},  # in no class; joined so that no part matches
    **{f"{age} {animal}": animal for age in ("baby", "adult") for animal in _ANIMALS},
    "passenger jet": "jet",
    "passenger train": "train",
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",
}


@dataclass(frozen=True)
class Lexicon:
    """Classes, synonyms and pairs; converts to and from plain JSON, so that a run can save it."""

    synonyms: Mapping[str, Sequence[str]]  # by class; a class's own name always counts
    double_words: Mapping[str, str]  # from two words with a space between to the word that they count as
    forms: Mapping[str, str] = field(default_factory=dict)  # lemmas that override the rules of language builtin

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Lexicon:
        """A benchmark's lexicon; COCO's if it has none. Without double_words, names of two words form pairs, in any case."""
        if not data:
            return cls.coco()
        try:
            synonyms = {str(name): _listed(words) for name, words in data["synonyms"].items()}
            if data.get("double_words") is None:
                synonyms = {name: tuple(word.lower() for word in (*words, name)) for name, words in synonyms.items()}
                return cls(synonyms, _own_pairs(synonyms), _words(data.get("forms", {})))
            return cls(synonyms, _words(data["double_words"]), _words(data.get("forms", {})))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BenchmarkError(
                f"a lexicon of captions has synonyms by class, and may have double_words ({error!r})"
            ) from None

    @classmethod
    @cache
    def coco(cls) -> Lexicon:
        """The lexicon of the published CHAIR scorers."""
        listed = Vocabulary.of("coco").synonyms
        synonyms = {
            name: tuple(word for word in (*words, *_MISSPELT.get(name, "").split()) if word not in _UNMATCHED)
            for name, words in listed.items()
        }
        excluded = {"dining table", "sports ball", *_PAIRS}
        pairs = {
            word: word for name, words in synonyms.items() for word in (name, *words) if " " in word and word not in excluded
        }
        unpaired = {name: tuple(word for word in words if word not in _PAIRS) for name, words in synonyms.items()}
        return cls(unpaired, {**pairs, **_PAIRS}, PUBLISHED_FORMS)

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Lexicon:
        """From synonyms.txt and double_words.json; COCO's, which gives the same figures, replaces a missing file."""
        words, pairs, coco = Path(folder) / "synonyms.txt", Path(folder) / "double_words.json", cls.coco()
        synonyms, doubles = coco.synonyms, coco.double_words
        if words.exists():
            lines = [line.strip().split(", ") for line in read_text(words).splitlines() if line.strip()]
            synonyms = {line[0]: tuple(line[1:]) for line in lines}
        if pairs.exists():
            doubles = read_json(pairs)
            if not isinstance(doubles, dict) or not all(isinstance(word, str) for word in doubles.values()):
                raise BenchmarkError(f"{pairs}: not an object with a word for each pair of words; fetch it again")
        return cls(synonyms, doubles, PUBLISHED_FORMS)

    def meanings(self) -> dict[str, str]:
        """From every word to its class; a class's name always means that class."""
        classes = {word: name for name in reversed(list(self.synonyms)) for word in self.synonyms[name]}
        return {**classes, **{name: name for name in self.synonyms}}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _listed(words: Any) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(map(str, words))


def _words(data: Any) -> dict[str, str]:
    return {str(word): str(other) for word, other in dict(data).items()}


def _own_pairs(synonyms: Mapping[str, Sequence[str]]) -> dict[str, str]:
    names = [word for words in synonyms.values() for word in words if " " in word]
    if long := [name for name in names if len(name.split()) > 2]:
        raise BenchmarkError(f"{long[0]!r}: words are put together in pairs; name things by one or two words")
    return {name: name for name in names}
