"""Which words AMBER's scorer counts as similar: identical words, pairs of a table, or words with close spaCy vectors.

The published scorer accepts a pair whose cosine similarity in spaCy's large English model is strictly above 0.8. Both words
come from a vocabulary of 418, so a table can hold all pairs; docs/benchmarks/amber.md says how much this affects the figures. A
score names the similarity that it used (`about`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from os import PathLike
from typing import Any, Protocol

import numpy as np

from mgap.errors import BenchmarkError, MissingExtra, SettingError
from mgap.io.regular_files import read_regular

THRESHOLD = 0.8  # strictly above it
IDENTICAL, TABLE, SPACY = "identical", "table", "spacy"
MODEL = "en_core_web_lg"


class Similarity(Protocol):
    """Whether two words count as the same."""

    def __call__(self, word: str, other: str) -> bool: ...

    def about(self) -> str | dict[str, Any]:
        """Plain JSON from which `find_similarity` builds the same one."""
        ...


class Identical:
    """Only identical words are similar."""

    def __call__(self, word: str, other: str) -> bool:
        return word == other

    def about(self) -> str:
        return IDENTICAL


@dataclass(frozen=True)
class PairTable:
    """Pairs with their similarities from a JSON file: [[word, word, number], ...], or an object with these as `pairs`.

    The object's other keys, such as the versions that the numbers come from, are notes for `about`.
    """

    file: str
    sha256: str
    values: Mapping[tuple[str, str], float] = field(repr=False)  # both ways round
    notes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> PairTable:
        try:
            data = read_regular(path)
            content = json.loads(data)
        except (OSError, ValueError, RecursionError) as error:
            raise SettingError(f"{path}: no table of similar words can be read there ({error})") from None
        notes = {name: value for name, value in content.items() if name != "pairs"} if isinstance(content, dict) else {}
        values: dict[tuple[str, str], float] = {}
        for one, other, value in _triples(content.get("pairs") if isinstance(content, dict) else content, str(path)):
            if values.setdefault((one, other), value) != value or values.setdefault((other, one), value) != value:
                raise SettingError(f"{path}: {one} and {other} stand there with two similarities; keep one of them")
        return cls(str(path), hashlib.sha256(data).hexdigest(), values, notes)

    def __call__(self, word: str, other: str) -> bool:
        return word == other or self.values.get((word, other), 0.0) > THRESHOLD

    def about(self) -> dict[str, Any]:
        return {"name": TABLE, "file": self.file, "sha256": self.sha256, **({"notes": dict(self.notes)} if self.notes else {})}


class SpacyVectors:
    """Cosine similarity of word vectors from an installed spaCy model, as in the published scorer."""

    def __init__(self, model: str = MODEL) -> None:
        try:
            import spacy
        except ImportError:
            raise MissingExtra("spacy", "vectors", "similarity by word vectors") from None
        try:
            self._nlp: Any = spacy.load(model)
        except OSError:
            raise SettingError(f"spaCy has no model {model!r}: install it with: python -m spacy download {model}") from None
        if self._nlp.vocab.vectors.size == 0:  # small models compute similarity from context, which is something else
            raise SettingError(f"{model} has no word vectors: take {MODEL}, or a table of pairs")
        self.model, self.versions = model, {"spacy": spacy.__version__, model: str(self._nlp.meta["version"])}
        self._vectors: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}

    def __call__(self, word: str, other: str) -> bool:
        return word == other or self.cosine(word, other) > THRESHOLD

    def cosine(self, word: str, other: str) -> float:
        """The cosine; 0 if either word is unknown."""
        return float(self._unit(word) @ self._unit(other))

    def table(self, words: Iterable[str]) -> dict[str, Any]:
        """All pairs above the threshold, in `PairTable`'s format."""
        scored = ((one, other, self.cosine(one, other)) for one, other in combinations(sorted(set(words)), 2))
        return {"versions": self.versions, "pairs": [list(pair) for pair in scored if pair[2] > THRESHOLD]}

    def about(self) -> dict[str, Any]:
        return {"name": SPACY, "model": self.model, "versions": self.versions}

    def _unit(self, word: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        if word not in self._vectors:
            vector = np.asarray(self._nlp.make_doc(word).vector, dtype=np.float64)  # the mean over its tokens
            self._vectors[word] = vector / (np.linalg.norm(vector) or 1.0)
        return self._vectors[word]


def find_similarity(choice: str | PathLike[str] | Mapping[str, Any]) -> Similarity:
    """identical, spacy, spacy:MODEL, or a table's file; or the result of `about`, refused if file or versions have changed."""
    if isinstance(choice, Mapping):
        return _reload(choice)
    name, _, model = str(choice).partition(":")
    if str(choice) == IDENTICAL:
        return Identical()
    if name == SPACY:
        return SpacyVectors(model or MODEL)
    if not os.path.exists(choice):  # Path.exists raises on a name that is too long
        raise SettingError(f"similarity={str(choice)!r}: choose from identical, spacy, spacy:MODEL, or the file of a table")
    return PairTable.read(choice)


def contradictions(similarity: Similarity, dissimilar: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Pairs known to be dissimilar that `similarity` accepts: a check of tables and vectors."""
    return [(one, other) for one, other in dissimilar if similarity(one, other) or similarity(other, one)]


def _reload(about: Mapping[str, Any]) -> Similarity:
    loaded: PairTable | SpacyVectors
    if about.get("name") == TABLE and "file" in about:
        loaded = PairTable.read(about["file"])
        is_same = loaded.sha256 == about.get("sha256", loaded.sha256)
    elif about.get("name") == SPACY:
        loaded = SpacyVectors(about.get("model", MODEL))
        is_same = loaded.versions == about.get("versions", loaded.versions)
    else:
        raise SettingError(f"similarity={dict(about)!r}: give name=table with file, or name=spacy with model")
    if not is_same:
        raise BenchmarkError(f"{about.get('file', about.get('model'))} is not what the score was made with: {loaded.about()}")
    return loaded


def _triples(pairs: Any, path: str) -> Iterator[tuple[str, str, float]]:
    if not isinstance(pairs, list):
        raise SettingError(f"{path}: no table of similar words; write [[word, word, number], ...]")
    for number, triple in enumerate(pairs, start=1):
        match triple:
            case [str() as one, str() as other, (int() | float()) as value] if not isinstance(value, bool) and abs(value) <= 2:
                yield one, other, float(value)
            case _:
                raise SettingError(f"{path}: entry {number} is {triple!r:.60}, and a pair is [word, word, number]")
