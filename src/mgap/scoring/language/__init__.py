"""From a text to its words in their dictionary form: two named pipelines behind one protocol.

`nltk` is what the published scorers use and needs NLTK with its data; `builtin` needs nothing. A score names the one that made
it.
"""

from __future__ import annotations

from collections.abc import Collection
from os import PathLike
from typing import Protocol

from mgap.errors import SettingError

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


def find_language(name: str, *, words: Collection[str] = (), data: str | PathLike[str] | None = None) -> Language:
    """A pipeline by its name.

    `words` are those that a benchmark looks for: `builtin` knows their forms and no others; `nltk` knows English. `data` is a
    folder with chair/tagger, chair/lemma_table.json and amber/noun_lemmas.json: `nltk` is then built without NLTK's own data.
    """
    if name == "nltk":
        from mgap.scoring.language.published import Nltk

        return Nltk.installed() if data is None else Nltk.from_tables(data)
    if name == "builtin":
        from mgap.scoring.language.builtin import Builtin

        return Builtin(words)
    raise SettingError(f"unknown language {name!r}: choose from {', '.join(LANGUAGES)}")
