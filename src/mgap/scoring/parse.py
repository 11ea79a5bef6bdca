"""Reading a text as yes or no."""

from __future__ import annotations

import re

_WORDS = re.compile(r"[a-z]+(?:'t)?")
_DENIALS = {"no", "not", "none", "nothing", "never", "neither", "nope"}


def yes_or_no(text: str) -> str | None:
    """The first sentence decides: a leading yes or no, else any denial, else a yes; None if it says neither."""
    sentence = re.split(r"[.!?\n]", text.strip().lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"), maxsplit=1)[0]
    words = _WORDS.findall(sentence)
    if words and words[0] in ("yes", "no"):
        return str(words[0])
    if any(word in _DENIALS or word.endswith("n't") for word in words):
        return "no"
    return "yes" if "yes" in words else None
