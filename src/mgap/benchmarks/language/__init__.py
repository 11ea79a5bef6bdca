"""From a text to its words in their dictionary form: two named pipelines behind one protocol.

`nltk` is what the published scorers use and needs NLTK with its data; `builtin` needs nothing. A score names the one that made
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from typing import Protocol

from mgap.benchmarks.chair.lexicon import PUBLISHED_FORMS
from mgap.errors import SettingError, require_extra

LANGUAGES = ("builtin", "nltk")


class Language(Protocol):
    """A pipeline: tokens, their parts of speech, their dictionary forms."""

    @property
    def name(self) -> str:
        """As `find_language` reads it."""
        ...

    def lemmas(self, text: str) -> list[str]:
        """The dictionary form of every token of the lower-cased text (CHAIR)."""
        ...

    def nouns(self, text: str) -> list[str]:
        """The dictionary form of the tokens that are nouns, case kept (AMBER)."""
        ...


def check_language(name: str) -> None:
    """Refuse an unknown one, and one whose package is not here."""
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
    """A pipeline by its name.

    `nltk` knows English. With `data`, a folder that has chair/tagger, chair/lemma_table.json and amber/noun_lemmas.json, it is
    built without NLTK's own data. `builtin` knows the forms of the `words` that a benchmark looks for and no others; `forms`
    go before its rules, by default so that it errs where the published scorers do.
    """
    check_language(name)
    if name == "nltk":
        from mgap.benchmarks.language.nltk_pipeline import Nltk

        return Nltk.installed() if data is None else Nltk.from_tables(data)
    from mgap.benchmarks.language.builtin import Builtin

    return Builtin(words, forms)
