"""The pipeline that needs nothing: our own tokens, and the forms of the words that a benchmark looks for.

It has no tagger; a few rules on a word's neighbours stand in for one. How often it agrees with `nltk` is measured in
docs/benchmarks/chair.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from mgap.benchmarks.language.forms import plurals, verb_forms
from mgap.benchmarks.language.tokens import tokens

_DETERMINER = re.compile("an?|the|these|this|that|those|my|your|his|her|its|our|their|own|no|some|any|each|every|another|'s")
_ADJECTIVE = re.compile(r"\w+(?:ive|ous|ful|able|ible|ic)|lively|upcoming|extra|outdoor|indoor")
_PREPOSITION = re.compile("for|in|on|at|by|with|during")
_ASIDE = re.compile("bearing|bedding|booking|bowling|seating|shipping|training")  # nouns of their own more often than verbs
_SUBJECT = re.compile("i|you|he|she|it|we|they|who|can|could|may|might|must|shall|should|will|would|n't")  # a verb follows
_DEED = re.compile("bat|brush|drink|fish|light|lounge|net|paddle|park|row|sail|screen|skate|ski|spray|surf|swing|tie|watch")
_TIN = re.compile("aluminum|beer|garbage|soda|spray|tin|trash|watering")  # of a can that is none of "can be seen"
_SHADE = re.compile("colou?r(?:ed|s)?|beige|blue|breeze|brown|gr[ae]y|green|pink|purple|tan|wood(?:en)?|yellow")


class Builtin:
    """Words of several parts, such as "traffic light", are known by their parts: a scorer puts them together."""

    name = "builtin"

    def __init__(self, words: Collection[str], forms: Mapping[str, str]) -> None:
        self._words = {part for word in words for part in word.split()}
        self._plurals, self._verbs = {**plurals(self._words), **forms}, verb_forms(self._words)

    def lemmas(self, text: str) -> list[str]:
        found = ["", *tokens(text.lower()), ""]
        return [self._lemma(*found[place - 1 : place + 2]) for place in range(1, len(found) - 1)]

    def nouns(self, text: str) -> list[str]:
        """Of the words that are looked for."""
        found = ["", *tokens(text), ""]
        places = (place for place in range(1, len(found) - 1) if _is_noun(*found[place - 1 : place + 2]))
        lemmas = (self._plurals.get(found[place], found[place]) for place in places)
        return [lemma for lemma in lemmas if lemma in self._words]

    def _lemma(self, before: str, token: str, after: str) -> str:
        if token in self._plurals:
            return self._plurals[token]
        if token in self._verbs and token not in self._words and _is_verb(before, token, after):
            return self._verbs[token]
        return token


def _is_verb(before: str, token: str, after: str) -> bool:
    """Whether a form in -ing or -ed is one, and no noun or adjective."""
    if _ASIDE.fullmatch(token):
        return bool(_PREPOSITION.fullmatch(after)) and not _DETERMINER.fullmatch(before)
    return not (token.endswith("ing") and (_DETERMINER.fullmatch(before) or _ADJECTIVE.fullmatch(before)))


def _is_noun(before: str, token: str, after: str) -> bool:
    """Whether a token that may be a noun is one, and no verb or adjective."""
    before = before.lower()
    if token == "can":
        return bool((_DETERMINER.fullmatch(before) and before != "that") or _TIN.fullmatch(before))
    if token == "hot" or (token == "light" and _SHADE.fullmatch(after)):
        return False
    if token.endswith("ing") and token != "building":
        return before not in (",", "") and not _DETERMINER.fullmatch(after)
    return not (_SUBJECT.fullmatch(before) or (before == "to" and _DEED.fullmatch(token)))
