"""Read an answer to MME as yes or no: by our own parser, and by the rules of three projects that score MME.

The name lmms_eval stands for another rule here than in POPE: that project has one for each benchmark.
"""

from __future__ import annotations

from mgap.benchmarks.yesno_parsers import DEFAULT, PARSERS, Parser

_SEEN = 4  # characters that the official script looks at


def _first_characters(text: str) -> str | None:
    start = text.lower()[:_SEEN]
    return next((word for word in ("yes", "no") if word in start), None)


def _letter_or_first_characters(text: str) -> str | None:
    clean = text.strip().replace(".", "")
    return {"y": "yes", "n": "no"}.get(clean.lower()) or _first_characters(clean)


READERS = {
    parser.name: parser
    for parser in (
        PARSERS[DEFAULT],
        Parser(
            "mme",
            "MME: the letters yes among the first four characters, else the letters no, else unparsed",
            lambda text, _: _first_characters(text),
        ),
        Parser(
            "lmms_eval",
            "lmms-eval, of MME: stripped and without full stops, y or n alone, else as mme",
            lambda text, _: _letter_or_first_characters(text),
        ),
        PARSERS["vlmevalkit"],
    )
}
