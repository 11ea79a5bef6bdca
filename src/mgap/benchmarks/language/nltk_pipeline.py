"""The pipeline of the published scorers: NLTK's tokeniser, averaged-perceptron tagger and WordNet lemmatiser.

Nothing is unpickled: NLTK 3.9 and later read JSON and tables. Without NLTK's data, the same pipeline is built from a folder
with the tagger's weights as JSON and a table of lemmas for a benchmark's words; other words stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from mgap.benchmarks.language.tokens import sentences
from mgap.errors import BenchmarkError
from mgap.io.record_files import read_json

_PARTS = {"N": "n", "V": "v", "J": "a", "R": "r"}  # from a tag's first letter to WordNet's part of speech; others are nouns
_COLUMNS = "nvar"  # of lemma_table.json
_RESOURCES = "punkt_tab averaged_perceptron_tagger_eng wordnet"
_TAGGER = tuple(f"chair/tagger/{part}.json" for part in ("weights", "tagdict", "classes"))

Lemma = Callable[[str, str], str]  # from a token and its part of speech (n, v, a or r) to its lemma


class Nltk:
    """Tokenises, tags all tokens at once, and lemmatises."""

    name = "nltk"

    def __init__(
        self, split: Callable[[str], list[str]], tag: Callable[[list[str]], list[Any]], lemma: Lemma, noun: Lemma
    ) -> None:
        self.split, self.tag = split, tag
        self._lemma, self._noun = lemma, noun

    @classmethod
    def installed(cls) -> Nltk:
        """With NLTK's own data."""
        nltk = _import()
        try:
            tagger, lemmatiser = nltk.PerceptronTagger(), nltk.WordNetLemmatizer()
            nltk.word_tokenize("a word")
            lemmatiser.lemmatize("words")
        except LookupError:
            raise BenchmarkError(
                f"NLTK's data is missing: fetch it once with `python -m nltk.downloader {_RESOURCES}`, or use language builtin"
            ) from None
        return cls(nltk.word_tokenize, tagger.tag, lemmatiser.lemmatize, lemmatiser.lemmatize)

    @classmethod
    def from_tables(cls, folder: str | PathLike[str]) -> Nltk:
        """With the tagger's weights and tables of lemmas instead of NLTK's data."""
        nltk, root = _import(), Path(folder)
        weights, tags, classes = (
            _read(root / name, check) for name, check in zip(_TAGGER, (_are_weights, _are_forms, _are_classes), strict=True)
        )
        tagger, words = nltk.PerceptronTagger(load=False), nltk.NLTKWordTokenizer()
        tagger.model.weights, tagger.tagdict = weights, tags
        tagger.classes = tagger.model.classes = set(classes)
        return cls(
            lambda text: [token for sentence in sentences(text) for token in words.tokenize(sentence)],
            tagger.tag,
            _Table(root / "chair" / "lemma_table.json"),
            _Table(root / "amber" / "noun_lemmas.json"),
        )

    def lemmas(self, text: str) -> list[str]:
        return [self._lemma(token, _PARTS.get(tag[0], "n")) for token, tag in self.tag(self.split(text.lower()))]

    def nouns(self, text: str) -> list[str]:
        return [self._noun(token, "n") for token, tag in self.tag(self.split(text)) if tag.startswith("NN")]


def has_tables(folder: str | PathLike[str]) -> bool:
    """Whether the pipeline can be built from this folder."""
    return all((Path(folder) / name).is_file() for name in _TAGGER)


class _Table:
    """From a token to its lemma, as a noun or by part of speech; the file is read on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forms: dict[str, Any] = {}

    def __call__(self, token: str, part: str) -> str:
        self.forms = self.forms or _read(self.path, _are_lemmas)
        lemma = self.forms.get(token, token)
        return str(lemma if isinstance(lemma, str) else lemma[_COLUMNS.index(part)])


def _import() -> Any:
    """The classes and functions of NLTK that are used here."""
    from types import SimpleNamespace

    from nltk.stem import WordNetLemmatizer
    from nltk.tag.perceptron import PerceptronTagger
    from nltk.tokenize import NLTKWordTokenizer, word_tokenize

    return SimpleNamespace(
        WordNetLemmatizer=WordNetLemmatizer,
        PerceptronTagger=PerceptronTagger,
        NLTKWordTokenizer=NLTKWordTokenizer,
        word_tokenize=word_tokenize,
    )


def _read(path: Path, check: Callable[[Any], bool]) -> Any:
    if not path.is_file():
        raise BenchmarkError(f"{path}: not there; language nltk needs it, or NLTK's own data, or choose builtin")
    data = read_json(path)
    if not check(data):
        raise BenchmarkError(f"{path}: not a table as language nltk reads it; fetch it again")
    return data


def _are_words(data: Any) -> bool:
    return isinstance(data, list) and all(isinstance(word, str) and word for word in data)


def _are_classes(data: Any) -> bool:
    return _are_words(data) and len(data) > 0  # the tagger needs one to choose


def _are_forms(data: Any) -> bool:
    return isinstance(data, dict) and _are_words(list(data.values()))


def _are_lemmas(data: Any) -> bool:
    return isinstance(data, dict) and all(
        isinstance(forms, str) or (_are_words(forms) and len(forms) == len(_COLUMNS)) for forms in data.values()
    )


def _are_weights(data: Any) -> bool:
    return isinstance(data, dict) and all(
        isinstance(by_tag, dict) and all(isinstance(weight, float | int) for weight in by_tag.values())
        for by_tag in data.values()
    )
