"""Forms of English words: plurals and, for nouns that are also verbs, the verb's forms.

They follow a dictionary lemmatiser, as in the published scorers: `seated` is a form of `seat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mgap.priors.object_words import plural

# Plurals that follow no rule; they apply whichever words a benchmark looks for.
_IRREGULAR = {
    "busses": "bus", "cacti": "cactus", "calves": "calf", "feet": "foot", "halves": "half", "hooves": "hoof", "knives": "knife",
    "leaves": "leaf", "loaves": "loaf", "scarves": "scarf", "shelves": "shelf", "teeth": "tooth", "wolves": "wolf",
    "buffaloes": "buffalo", "flamingoes": "flamingo", "mangoes": "mango", "mosquitoes": "mosquito", "potatoes": "potato",
    "tomatoes": "tomato", "volcanoes": "volcano",
}  # fmt: skip

# Nouns that are also verbs, with forms in -ing and -ed.
_VERBS = re.compile(
    "baby|ball|barge|bear|bed|bench|bicycle|bike|boat|book|bottle|bow|bowl|bus|cab|cake|canoe|cat|chair|clock|cop|couch|cow|crow"
    "|cup|doctor|dog|duck|father|ferry|foal|fork|goose|groom|gull|guy|horse|hound|jet|kayak|kid|kite|knife|lamb|man|microwave"
    "|monitor|mother|motorbike|motorcycle|mouse|officer|parrot|people|phone|plane|pup|purse|quail|ram|sandwich|seat|ship|sink"
    "|skateboard|ski|snowboard|soldier|spoon|sub|surfboard|table|taxi|telephone|tie|train|truck|yacht"
)
_STRONG = {"bear": ("bearing", "born", "borne"), "sink": ("sinking", "sank", "sunk", "sunken")}
_SHORT = re.compile("[^aeiou]+[aeiou][bdgmnpt]")  # ship, shipping


def plurals(words: Iterable[str]) -> dict[str, str]:
    """From a plural to its word."""
    ordered = sorted(words)
    wrong = {f"{word}s": word for word in ordered}  # childs
    return {**wrong, **{plural(word): word for word in ordered}, **_IRREGULAR}


def verb_forms(words: Iterable[str]) -> dict[str, str]:
    """From a form in -ing or -ed to its word."""
    return {form: word for word in sorted(words) if _VERBS.fullmatch(word) for form in _conjugated(word)}


def _conjugated(verb: str) -> tuple[str, ...]:
    if verb in _STRONG:
        return _STRONG[verb]
    if verb.endswith("ie"):
        return f"{verb[:-2]}ying", f"{verb}d"
    if verb.endswith("e"):
        return f"{verb if verb.endswith('oe') else verb[:-1]}ing", f"{verb}d"
    if re.search("[^aeiou]y$", verb):
        return f"{verb}ing", f"{verb[:-1]}ied"
    stem = verb + verb[-1] if _SHORT.fullmatch(verb) else verb
    return f"{stem}ing", f"{stem}ed"
