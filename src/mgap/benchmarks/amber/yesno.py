"""AMBER's discriminative task: normalise free texts to Yes or No by the rules of several projects, and count them.

The published scorer accepts only the texts `Yes` and `No`, so a score of free texts must name the rule that normalised them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mgap.benchmarks.yesno_parsers import find_parser, yes_or_no
from mgap.errors import SettingError

_DENIALS = {"no", "not", "none", "nothing", "nowhere", "neither", "nor", "nobody", "without", "zero", "0"}


def _first_sentence(text: str) -> str:
    """Our own: the first sentence decides; a text that says neither is unchanged."""
    verdict = yes_or_no(text)
    return text if verdict is None else verdict.capitalize()


def _original(text: str) -> str:
    return text


def _haltrapper(text: str) -> str:
    """HalTrapper and MGAP: No if any whole word is a denial; contractions and `cannot` are not."""
    return "No" if _DENIALS & set(re.findall(r"\w+", text.lower())) else "Yes"


def _mod(text: str) -> str:
    """MoD and AvisC: OPERA's parser for POPE."""
    return str(find_parser("opera")(text, "")).capitalize()


def _lmms_eval(text: str) -> str:
    """The letters yes or no anywhere, also within other words."""
    lower = text.lower()
    return "Yes" if "yes" in lower else "No" if "no" in lower else text


NORMALISERS: dict[str, Callable[[str], str]] = {
    "first-sentence": _first_sentence,
    "original": _original,
    "strict": _original,  # an alias
    "haltrapper": _haltrapper,
    "mod": _mod,
    "lmms_eval": _lmms_eval,
}


def find_normaliser(name: str) -> Callable[[str], str]:
    """The rule of this name: it maps a text to `Yes` or `No`, or returns it unchanged."""
    if name not in NORMALISERS:
        raise SettingError(f"unknown normaliser {name!r}: choose from {', '.join(NORMALISERS)}")
    return NORMALISERS[name]


@dataclass(frozen=True)
class Answered:
    """One question's truth and its normalised answer."""

    truth: str  # "yes" or "no"
    verdict: str  # "Yes", "No", or any other text, which is wrong

    @property
    def is_right(self) -> bool:
        return self.verdict == self.truth.capitalize()

    @property
    def is_parsed(self) -> bool:
        return self.verdict in ("Yes", "No")

    def row(self) -> tuple[int, int, int, int, int]:
        """What it adds to the counts: questions, right, truth no, answered no, answered no rightly."""
        is_no, says_no = self.truth == "no", self.verdict == "No"
        return 1, int(self.is_right), int(is_no), int(says_no), int(is_no and says_no)


def count(answers: Iterable[Answered]) -> tuple[int, ...]:
    """The sum of the rows."""
    return tuple(map(sum, zip((0,) * 5, *(answer.row() for answer in answers), strict=True)))
