"""Forms of English words: plurals and, for things that are also something to do, the verb's forms.

What counts is what a dictionary-based lemmatiser makes of a form, as the published scorers do: `seated` is a form of `seat`, but
`men`, which dictionaries list as a word of its own, is none of `man`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mgap.data.objects import plural

# Plurals that stay as they are: in WordNet a word of their own or the plural of a shorter one (vas), or seldom tagged as plural.
_OWN_WORDS = {"men", "people", "vases", "geese"}

# Plurals that the rule of `plural` does not give, and other spellings.
_PLURALS = {
    "bus": ("busses",), "calf": ("calves",), "person": ("persons",), "half": ("halves",), "loaf": ("loaves",),
    "potato": ("potatoes",), "tomato": ("tomatoes",), "buffalo": ("buffaloes",), "flamingo": ("flamingoes",),
    "tooth": ("teeth",), "shelf": ("shelves",), "leaf": ("leaves",), "wolf": ("wolves",), "scarf": ("scarves",),
    "volcano": ("volcanoes",), "mango": ("mangoes",), "torpedo": ("torpedoes",), "cargo": ("cargoes",), "hoof": ("hooves",),
    "mosquito": ("mosquitoes",), "cactus": ("cacti",), "quiz": ("quizzes",),
}  # fmt: skip

# Names of things that are verbs as well, so that -ing and -ed are forms of them.
_VERBS = """
    baby ball barge bear bed bench bicycle bike boat book bottle bow bowl bus cab cake canoe cat chair clock cop couch cow crow
    cup doctor dog duck father ferry foal fork goose groom gull guy horse hound jet kayak kid kite knife lamb man microwave
    monitor mother motorbike motorcycle mouse officer parrot people phone plane pup purse quail ram sandwich seat ship sink
    skateboard ski snowboard soldier spoon sub surfboard table taxi telephone tie train truck yacht
""".split()
_IRREGULAR = {"bear": ("bearing", "born", "borne"), "sink": ("sinking", "sank", "sunk", "sunken")}
_DOUBLED = re.compile(r"[^aeiou][aeiou][bdgmnpt]")  # of a short word: ship, shipping

# Forms that are nouns of their own more often than forms of the verb.
NOMINAL = {"bearing", "bedding", "booking", "bowling", "seating", "shipping", "training"}


def plurals(words: Iterable[str]) -> dict[str, str]:
    """From a plural to the word."""
    forms = {form: word for word in words for form in (f"{word}s", *_PLURALS.get(word, ()), plural(word))}
    return {form: word for form, word in forms.items() if form not in _OWN_WORDS}


def verb_forms(words: Iterable[str]) -> dict[str, str]:
    """From a form in -ing or -ed to the word."""
    return {form: word for word in set(words).intersection(_VERBS) for form in _conjugated(word)}


def _conjugated(verb: str) -> tuple[str, ...]:
    if verb in _IRREGULAR:
        return _IRREGULAR[verb]
    if verb.endswith("ie"):
        return f"{verb[:-2]}ying", f"{verb}d"
    if verb.endswith("oe"):
        return f"{verb}ing", f"{verb}d"
    if verb.endswith("e"):
        return f"{verb[:-1]}ing", f"{verb}d"
    if re.search("[^aeiou]y$", verb):
        return f"{verb}ing", f"{verb[:-1]}ied"
    stem = verb + verb[-1] if _DOUBLED.fullmatch(verb) or verb == "ship" else verb
    return f"{stem}ing", f"{stem}ed"
