"""Split texts into sentences and tokens, as the Penn Treebank does.

A full stop is a separate token only at the end of a sentence: `truck.In` is one token, and so are `sofa/couch` and words with a
hyphen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]}\u201d\u2019]))\s+")
_INITIAL = re.compile(r"(?:.*[^\w.])?[^\W\d_](?:\.[^\W\d_])*\.\W?")  # with a full stop
_NUMBER = re.compile(r"(?:.*[^\w.])?[\d-]*\d\.\W?")
_STOP = re.compile(r"(?s)(.*[^.])\.([\])}>\"'\u00bb\u201d\u2019 ]*)")  # text before a final full stop, closing marks after it
_ALONE = r";@#$%&?!*()\[\]{}<>\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e\u2012-\u2015"  # each is a separate token
_PIECE = re.compile(
    rf"""
      [{_ALONE}] | `+ | '' | " | \.\.+ | -- | [:,](?!\d)
    | (?: [^\s{_ALONE}`'":,.-] | [:,](?=\d) | \.(?!\.) | -(?!-) | '(?!') )+  # a word
    """,
    re.VERBOSE,
)
_OPENED = re.compile(r"'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", re.IGNORECASE)  # an apostrophe that opens a word
_CLITIC = re.compile(r"(.*[^'])(n't|'(?:s|m|d|ll|re|ve)?)", re.IGNORECASE)
_JOINED = re.compile(r"(can)(not)|(gon)(na)|(wan)(na)|(got)(ta)|(gim)(me)|(lem)(me)", re.IGNORECASE)


def sentences(text: str) -> list[str]:
    """A sentence ends after . ! or ?, optionally one closing quote or bracket, and white space.

    A full stop does not end a sentence after a single letter (an abbreviation), or after a number before a lower-case letter.
    """
    result: list[str] = []
    for part in _END.split(text.strip()):
        last = result[-1].rsplit(maxsplit=1)[-1] if result else ""
        if _INITIAL.fullmatch(last) or (part[:1].islower() and _NUMBER.fullmatch(last)):
            result[-1] += f" {part}"
        else:
            result.append(part)
    return [sentence for sentence in result if sentence]


def tokens(text: str) -> list[str]:
    """The tokens of all sentences; straight double quotes become two back-ticks or two apostrophes."""
    result: list[str] = []
    for sentence in sentences(text):
        stopped = _STOP.fullmatch(sentence)
        if stopped:
            result += [*_split(stopped[1]), ".", *_split(stopped[2], opens=False)]
        else:
            result += _split(sentence)
    return result


def _split(text: str, *, opens: bool = True) -> Iterator[str]:
    """`opens`: a double quote at the start is an opening quote; one after a space or a bracket always is."""
    for match in _PIECE.finditer(text):
        piece, before = match.group(), text[max(match.start() - 1, 0) : match.start()]
        if piece in ('"', "''"):
            yield "``" if (before in " \n\t([{<" if before else opens and piece == '"') else "''"
        elif piece[0].isalnum() or piece[0] == "'":
            yield from _word(piece)
        else:
            yield piece


def _word(piece: str) -> Iterator[str]:
    """A word, split from its opening apostrophe and its final clitic."""
    if _OPENED.match(piece):
        yield "'"
        piece = piece[1:]
    cut = _CLITIC.fullmatch(piece)
    head, tail = cut.groups() if cut else (piece, "")
    joined = _JOINED.fullmatch(head)
    yield from (part for part in (*(joined.groups() if joined else (head,)), tail) if part)
