"""The pipeline without dependencies: our own tokeniser, and the forms of the words that a benchmark looks for.

Instead of a tagger it has a few rules on a word's neighbours. docs/benchmarks/chair.md measures how often it agrees with
`nltk`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from mgap.benchmarks.language.forms import plurals, verb_forms
from mgap.benchmarks.language.tokens import tokens

_DETERMINER = re.compile("an?|the|these|this|that|those|my|your|his|her|its|our|their|own|no|some|any|each|every|another|'s")
_ADJECTIVE = re.compile(r"\w+(?:ive|ous|ful|able|ible|ic)|lively|upcoming|extra|outdoor|indoor")
_PREPOSITION = re.compile("for|in|on|at|by|with|during")
_MOSTLY_NOUNS = re.compile("bearing|bedding|booking|bowling|seating|shipping|training")  # more often nouns than verbs
_BEFORE_VERB = re.compile("i|you|he|she|it|we|they|who|can|could|may|might|must|shall|should|will|would|n't")
_ALSO_VERBS = re.compile(
    "bat|brush|drink|fish|light|lounge|net|paddle|park|row|sail|screen|skate|ski|spray|surf|swing|tie|watch"
)
_BEFORE_CAN = re.compile("aluminum|beer|garbage|soda|spray|tin|trash|watering")  # unlike "can be seen"
_AFTER_LIGHT = re.compile("colou?r(?:ed|s)?|beige|blue|breeze|brown|gr[ae]y|green|pink|purple|tan|wood(?:en)?|yellow")


class Builtin:
    """Lemmatises single words; a scorer joins words of several parts, such as "traffic light"."""

    name = "builtin"

    def __init__(self, words: Collection[str], forms: Mapping[str, str]) -> None:
        self._words = {part for word in words for part in word.split()}
        self._plurals, self._verbs = {**plurals(self._words), **forms}, verb_forms(self._words)

    def lemmas(self, text: str) -> list[str]:
        padded = ["", *tokens(text.lower()), ""]
        return [self._lemma(*padded[i - 1 : i + 2]) for i in range(1, len(padded) - 1)]

    def nouns(self, text: str) -> list[str]:
        """Only nouns that the benchmark looks for."""
        padded = ["", *tokens(text), ""]
        nouns = (padded[i] for i in range(1, len(padded) - 1) if _is_noun(*padded[i - 1 : i + 2]))
        lemmas = (self._plurals.get(noun, noun) for noun in nouns)
        return [lemma for lemma in lemmas if lemma in self._words]

    def _lemma(self, before: str, token: str, after: str) -> str:
        if token in self._plurals:
            return self._plurals[token]
        if token in self._verbs and token not in self._words and _is_verb(before, token, after):
            return self._verbs[token]
        return token


def _is_verb(before: str, token: str, after: str) -> bool:
    """Whether a form in -ing or -ed is a verb, not a noun or an adjective."""
    if _MOSTLY_NOUNS.fullmatch(token):
        return bool(_PREPOSITION.fullmatch(after)) and not _DETERMINER.fullmatch(before)
    return not (token.endswith("ing") and (_DETERMINER.fullmatch(before) or _ADJECTIVE.fullmatch(before)))


def _is_noun(before: str, token: str, after: str) -> bool:
    """Whether a possible noun is a noun, not a verb or an adjective."""
    before = before.lower()
    if token == "can":
        return bool((_DETERMINER.fullmatch(before) and before != "that") or _BEFORE_CAN.fullmatch(before))
    if token == "hot" or (token == "light" and _AFTER_LIGHT.fullmatch(after)):
        return False
    if token.endswith("ing") and token != "building":
        return before not in (",", "") and not _DETERMINER.fullmatch(after)
    return not (_BEFORE_VERB.fullmatch(before) or (before == "to" and _ALSO_VERBS.fullmatch(token)))
