"""Lemmatise texts: two named pipelines behind one protocol.

`nltk` is the pipeline of the published scorers and needs NLTK with its data; `builtin` needs nothing. A score names its
pipeline.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from typing import Protocol

from mgap.benchmarks.chair.lexicon import PUBLISHED_FORMS
from mgap.errors import SettingError, require_extra

LANGUAGES = ("builtin", "nltk")


class Language(Protocol):
    """A pipeline: tokens, parts of speech, lemmas."""

    @property
    def name(self) -> str:
        """The name for `find_language`."""
        ...

    def lemmas(self, text: str) -> list[str]:
        """The lemma of every token of the lower-cased text (CHAIR)."""
        ...

    def nouns(self, text: str) -> list[str]:
        """The lemmas of the nouns, with their case (AMBER)."""
        ...


def check_language(name: str) -> None:
    """Refuse an unknown pipeline, or one whose package is not installed."""
    if name not in LANGUAGES:
        raise SettingError(f"unknown language {name!r}: choose from {', '.join(LANGUAGES)}")
    if name == "nltk":
        require_extra("nltk", "bench", "language nltk, unlike builtin,")


def find_language(
    name: str,
    *,
    words: Collection[str] = (),
    forms: Mapping[str, str] = PUBLISHED_FORMS,
    data: str | PathLike[str] | None = None,
) -> Language:
    """The pipeline of this name.

    `nltk` handles any English text. With `data`, a folder with chair/tagger, chair/lemma_table.json and
    amber/noun_lemmas.json, it works without NLTK's own data. `builtin` only handles the `words` that a benchmark looks for;
    `forms` override its rules, by default so that it repeats the published scorers' errors.
    """
    check_language(name)
    if name == "nltk":
        from mgap.benchmarks.language.nltk_pipeline import Nltk

        return Nltk.installed() if data is None else Nltk.from_tables(data)
    from mgap.benchmarks.language.builtin import Builtin

    return Builtin(words, forms)
