"""The pipeline that needs nothing: our own tokens, and the forms of the words that a benchmark looks for.

It knows no parts of speech; a few rules on the neighbours of a word stand in for them. docs/benchmarks/chair.md has how often it
agrees with `nltk`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mgap.scoring.language.forms import NOMINAL, plurals, verb_forms
from mgap.scoring.language.tokens import tokens

_DETERMINERS = set("a an the this that these those my your his her its our their own no some any each every another 's".split())
_PREPOSITIONS = set("for in on at by with during".split())


class Builtin:
    """Words with several parts, such as "traffic light", count by their parts: a scorer puts them together."""

    name = "builtin"

    def __init__(self, words: Collection[str]) -> None:
        self.words = {part for word in words for part in word.split()}
        self._plurals, self._verbs = plurals(self.words), verb_forms(self.words)

    def lemmas(self, text: str) -> list[str]:
        found = tokens(text.lower())
        return [self._lemma(found, place) for place in range(len(found))]

    def nouns(self, text: str) -> list[str]:
        return [self._plurals.get(token, token) for token in tokens(text)]

    def _lemma(self, found: Sequence[str], place: int) -> str:
        token = found[place]
        if token in self._plurals:
            return self._plurals[token]
        if token in self._verbs and token not in self.words and _is_verb(found, place):
            return self._verbs[token]
        return token


def _is_verb(found: Sequence[str], place: int) -> bool:
    """Whether a form in -ing or -ed is one: not after an article or the like, nor where it is a noun of its own."""
    before, after = found[place - 1] if place else "", found[place + 1] if place + 1 < len(found) else ""
    if found[place] in NOMINAL:
        return after in _PREPOSITIONS
    return not (found[place].endswith("ing") and before in _DETERMINERS)
