"""Reading a text as yes or no: our own way, and every published one under the name of its project.

They part ways on free text only: on bare "Yes" and "No" all of them agree. Two of them, `vcd` and `mgap`, look at the label
before they read: what they give is whether an answer was right, and no reading of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mgap.errors import SettingError

DEFAULT = "first-sentence"

_WORDS = re.compile(r"[a-z]+(?:'t)?")
_DENIALS = {"no", "not", "none", "nothing", "never", "neither", "nope"}
_MARKS = ';/[]"{}()=+\\_-><@`,?!'  # what VLMEvalKit takes for punctuation, beside the full stop
_STOP = re.compile(r"\.(?!\d)")
_STOPS = 32  # VLMEvalKit deletes so many and leaves the rest


@dataclass(frozen=True)
class Parser:
    """A way to read an answer: called with the text and the label, it says "yes", "no", or None for neither."""

    name: str
    summary: str
    read: Callable[[str, str], str | None]
    needs_label: bool = False  # the verdict depends on what is right

    def __call__(self, text: str, label: str) -> str | None:
        return self.read(text, label)


def yes_or_no(text: str) -> str | None:
    """The first sentence decides: a leading yes or no, else any denial, else a yes; None if it says neither."""
    sentence = re.split(r"[.!?\n]", text.strip().lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"), maxsplit=1)[0]
    words = _WORDS.findall(sentence)
    if words and words[0] in ("yes", "no"):
        return str(words[0])
    if any(word in _DENIALS or word.endswith("n't") for word in words):
        return "no"
    return "yes" if "yes" in words else None


def _no_in_first_sentence(text: str) -> str:
    pieces = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "no", "not"} & set(pieces) else "yes"


def _no_anywhere(text: str) -> str:
    pieces = text.replace(".", "").replace(",", "").split(" ")
    return "no" if any(piece in ("No", "no", "NO", "not") or piece.endswith("n't") for piece in pieces) else "yes"


def _letters_of_label(text: str, label: str) -> str:
    """Right if the label's letters occur anywhere in the text, and the other label if not."""
    if label == "yes":
        return "yes" if "yes" in text.lower() else "no"
    return "no" if "no" in text.lower() else "yes"


def _bare_word(text: str) -> str | None:
    word = text.lower().strip()
    return word if word in ("yes", "no") else None


def _one_of_both(text: str) -> str | None:
    """A mark that touches a space somewhere, or any mark beside a number like 1,000, is deleted; else it is a space."""
    text = spaced = text.lower()
    numbers = re.search(r"\d,\d", text) is not None
    for mark in _MARKS:
        spaced = spaced.replace(mark, "" if numbers or f"{mark} " in text or f" {mark}" in text else " ")
    said = {"yes", "no"} & set(_STOP.sub("", spaced, count=_STOPS).split())
    return said.pop() if len(said) == 1 else None


_FIRST_SENTENCE = 'no if a word of the first sentence is exactly "No", "no" or "not", else yes'
_LETTERS = "label yes: right if the letters yes occur anywhere; label no: right if the letters no do; DEPENDS ON THE LABEL"

PARSERS = {
    parser.name: parser
    for parser in (
        Parser(
            DEFAULT,
            "the first sentence decides: a leading yes or no, else any denial, else a yes; neither is unparsed",
            lambda text, _: yes_or_no(text),
        ),
        Parser("original", f"POPE: {_FIRST_SENTENCE}", lambda text, _: _no_in_first_sentence(text)),
        Parser("llava", f"LLaVA: {_FIRST_SENTENCE}", lambda text, _: _no_in_first_sentence(text)),
        Parser("code", "CODE: as original, in lower case", lambda text, _: _no_in_first_sentence(text.lower())),
        Parser(
            "opera",
            'OPERA, PAI, AvisC: no if any word is "No", "no", "NO", "not" or ends in n\'t, else yes',
            lambda text, _: _no_anywhere(text),
        ),
        Parser("vcd", f"VCD, DeCo, MoD: {_LETTERS}", _letters_of_label, needs_label=True),
        Parser("mgap", f"the published code of MGAP: {_LETTERS}", _letters_of_label, needs_label=True),
        Parser(
            "lmms_eval", "lmms-eval: the whole text is yes or no in any case, else unparsed", lambda text, _: _bare_word(text)
        ),
        Parser(
            "vlmevalkit",
            "VLMEvalKit: the word yes or the word no but not both, else unparsed",
            lambda text, _: _one_of_both(text),
        ),
    )
}


def find_parser(name: str) -> Parser:
    if name not in PARSERS:
        raise SettingError(f"unknown parser {name!r}: choose from {', '.join(PARSERS)}")
    return PARSERS[name]
