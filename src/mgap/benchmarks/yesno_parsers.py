"""Parse a text as yes or no: our own parser, and every published one under the name of its project.

All of them agree on bare "Yes" and "No"; they differ on free text. Two of them, `vcd` and `mgap`, use the label: they say
whether the answer is right, not what it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mgap.errors import SettingError

DEFAULT = "first-sentence"
REFUSALS_UNREAD = "refusals-unread"

_WORDS = re.compile(r"[a-z]+(?:'t)?")
_REFUSAL = re.compile(
    r"\b(?:sorry|unable to|not able to|without (?:the|a|an|any|more|seeing)"
    r"|(?:i|we) (?:do not|don't|cannot|can not|can't|could not|couldn't))\b"
)
_DENIALS = {"no", "not", "none", "nothing", "never", "neither", "nope"}
_MARKS = ';/[]"{}()=+\\_-><@`,?!'  # VLMEvalKit's punctuation, besides the full stop
_STOP = re.compile(r"\.(?!\d)")
_MAX_STOPS = 32  # VLMEvalKit deletes this many and leaves the rest


@dataclass(frozen=True)
class Parser:
    """Called with an answer's text and the label, returns "yes", "no", or None for neither."""

    name: str
    summary: str
    read: Callable[[str, str], str | None]
    needs_label: bool = False  # the verdict depends on the label

    def __call__(self, text: str, label: str) -> str | None:
        return self.read(text, label)


def yes_or_no(text: str) -> str | None:
    """The first sentence decides: a leading yes or no, else any denial, else a yes; None if it says neither."""
    words = _WORDS.findall(_opening(text))
    if words and words[0] in ("yes", "no"):
        return str(words[0])
    if any(word in _DENIALS or word.endswith("n't") for word in words):
        return "no"
    return "yes" if "yes" in words else None


def _yes_or_no_but_no_refusal(text: str) -> str | None:
    """As `yes_or_no`, but a first sentence that refuses to answer, and leads with neither word, says neither."""
    words = _WORDS.findall(_opening(text))
    is_refused = words[:1] not in (["yes"], ["no"]) and _REFUSAL.search(_opening(text)) is not None
    return None if is_refused else yes_or_no(text)


def _opening(text: str) -> str:
    """The first sentence, in lower case, with straight apostrophes."""
    return re.split(r"[.!?\n]", text.strip().lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"), maxsplit=1)[0]


def _no_in_first_sentence(text: str) -> str:
    words = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "no", "not"} & set(words) else "yes"


def _no_anywhere(text: str) -> str:
    words = text.replace(".", "").replace(",", "").split(" ")
    return "no" if any(word in ("No", "no", "NO", "not") or word.endswith("n't") for word in words) else "yes"


def _letters_of_label(text: str, label: str) -> str:
    """The label if its letters occur anywhere in the text, else the other label."""
    if label == "yes":
        return "yes" if "yes" in text.lower() else "no"
    return "no" if "no" in text.lower() else "yes"


def _bare_word(text: str) -> str | None:
    word = text.lower().strip()
    return word if word in ("yes", "no") else None


def _one_of_both(text: str) -> str | None:
    """A mark becomes a space. It is deleted if it touches a space anywhere, or if the text has a number like 1,000."""
    text = spaced = text.lower()
    has_number = re.search(r"\d,\d", text) is not None
    for mark in _MARKS:
        spaced = spaced.replace(mark, "" if has_number or f"{mark} " in text or f" {mark}" in text else " ")
    answers = {"yes", "no"} & set(_STOP.sub("", spaced, count=_MAX_STOPS).split())
    return answers.pop() if len(answers) == 1 else None


def _yes_else_no(text: str) -> str | None:
    """The letters yes anywhere, else the letters no anywhere."""
    return next((word for word in ("yes", "no") if word in text.lower()), None)


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
        Parser(
            "repope",
            "RePOPE: yes if the letters yes occur anywhere, else no if the letters no do, else unparsed",
            lambda text, _: _yes_else_no(text),
        ),
        Parser(
            REFUSALS_UNREAD,
            f"as {DEFAULT}, but a first sentence that refuses to answer (sorry, I cannot, without the ...) is unparsed",
            lambda text, _: _yes_or_no_but_no_refusal(text),
        ),
        Parser(
            "yes-anywhere",
            "lmms-eval's rule for HallusionBench without a judge: yes if the letters yes occur anywhere, else no",
            lambda text, _: "yes" if "yes" in text.lower() else "no",
        ),
    )
}


def find_parser(name: str, among: Mapping[str, Parser] = PARSERS) -> Parser:
    if name not in among:
        raise SettingError(f"unknown parser {name!r}: choose from {', '.join(among)}")
    return among[name]
