"""AMBER's discriminative task: free texts as Yes or No by the rules of several projects, and what is counted of them.

The published scorer knows the texts `Yes` and `No` and nothing else; who scores free texts has to say by which rule they were
read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mgap.benchmarks.yesno_parsers import find_parser, yes_or_no
from mgap.errors import SettingError

_DENIALS = {"no", "not", "none", "nothing", "nowhere", "neither", "nor", "nobody", "without", "zero", "0"}


def _first_sentence(text: str) -> str:
    """Our own: the first sentence decides, and a text that says neither stays as it is."""
    verdict = yes_or_no(text)
    return text if verdict is None else verdict.capitalize()


def _original(text: str) -> str:
    return text


def _haltrapper(text: str) -> str:
    """HalTrapper and MGAP: any denial as a whole word; contractions and `cannot` are none."""
    return "No" if _DENIALS & set(re.findall(r"\w+", text.lower())) else "Yes"


def _mod(text: str) -> str:
    """MoD and AvisC: what OPERA does with answers to POPE."""
    return str(find_parser("opera")(text, "")).capitalize()


def _lmms_eval(text: str) -> str:
    """The letters, also inside of other words."""
    lower = text.lower()
    return "Yes" if "yes" in lower else "No" if "no" in lower else text


NORMALISERS: dict[str, Callable[[str], str]] = {
    "first-sentence": _first_sentence,
    "original": _original,
    "strict": _original,  # another name of it
    "haltrapper": _haltrapper,
    "mod": _mod,
    "lmms_eval": _lmms_eval,
}


def find_normaliser(name: str) -> Callable[[str], str]:
    """By name; from a text to `Yes`, `No`, or, where a rule leaves it as it is, the text."""
    if name not in NORMALISERS:
        raise SettingError(f"unknown normaliser {name!r}: choose from {', '.join(NORMALISERS)}")
    return NORMALISERS[name]


@dataclass(frozen=True)
class Answered:
    """One question's truth and the normalised answer to it."""

    truth: str  # "yes" or "no"
    said: str  # "Yes", "No", or any other text, which is wrong

    @property
    def is_right(self) -> bool:
        return self.said == self.truth.capitalize()

    @property
    def is_parsed(self) -> bool:
        return self.said in ("Yes", "No")

    def row(self) -> tuple[int, int, int, int, int]:
        """What it adds to the counts: asked, right, truth no, said no, said no rightly."""
        is_no, says_no = self.truth == "no", self.said == "No"
        return 1, int(self.is_right), int(is_no), int(says_no), int(is_no and says_no)


def count(answers: Iterable[Answered]) -> tuple[int, ...]:
    """The rows' sum."""
    return tuple(map(sum, zip((0,) * 5, *(answer.row() for answer in answers), strict=True)))
