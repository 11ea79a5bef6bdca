"""The report as JSON and as Markdown tables; percent with one decimal, and 95% intervals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

from mgap.benchmarks.statistics import Rate
from mgap.benchmarks.tally import Difference
from mgap.io.output_folder import write_files
from research.frontier.choosing import Choices
from research.frontier.contenders import BOTH, CAPTIONS, NEAR, PUBLISHED, QUESTIONS
from research.frontier.measures import Sheet
from research.frontier.reporting import PAIRED, Answers, Result, figures, paired

REPORT_FILE, TABLES = "report.json", "tables.md"
_DIGITS = {"unparsed": 0, "words": 1, "forwards a token": 2, "ms a token": 1}  # decimals of figures that are no shares

Figures = Mapping[str, Rate | float | None]
Pairs = Mapping[str, Mapping[str, Mapping[str, Difference]]]


def write_report(folder: str | PathLike[str], choices: Choices, sheet: Sheet, answers: Answers) -> str:
    """Write both files; return the tables."""
    shown = {name: figures(sheet, result.told) for name, result in answers.results.items()}
    pairs = paired(sheet, answers.results)
    text = tables(choices, answers, shown, pairs)
    content: dict[str, Any] = {
        "about": answers.about,
        "chosen_for": {name: list(result.chosen.purposes) for name, result in answers.results.items()},
        "figures": {
            name: {key: asdict(value) if isinstance(value, Rate) else value for key, value in of.items()}
            for name, of in shown.items()
        },
        "paired": {
            rival: {name: {key: asdict(one) for key, one in of.items()} for name, of in against.items()}
            for rival, against in pairs.items()
        },
    }
    write_files(folder, {REPORT_FILE: json.dumps(content, indent=1) + "\n", TABLES: text})
    return text


def tables(choices: Choices, answers: Answers, shown: Mapping[str, Figures], pairs: Pairs) -> str:
    """The chosen settings, their figures, and their paired differences."""
    sizes = answers.about["sizes"]
    parts = [
        f"# Methods on `{answers.about['model']}`",
        f"{sizes['scenes']} scenes for POPE, {sizes['held_out']} in the held-out style, {sizes['captions']} described, "
        f"{sizes['amber']} for AMBER; in {answers.about['dtype']}. Settings were chosen on other scenes; departures are from "
        f"plain states of {sizes['judge']} scenes that no method was given. Percent, with 95% intervals from a bootstrap over "
        "scenes.",
        "## Chosen",
        _chosen(choices, answers.results),
        "## Figures",
        _markdown(
            ("method", *next(iter(shown.values()), {})),
            ((name, *(_cell(key, value) for key, value in of.items())) for name, of in shown.items()),
        ),
        "## Paired differences",
        "The method less its rival on the same scenes; less CHAIRi is better. An interval without 0 is in bold.",
    ]
    for rival, against in pairs.items():
        rows = ((name, *(difference_text(of[key]) for key in PAIRED)) for name, of in against.items())
        parts += [f"### Against {rival}", _markdown(("method", *PAIRED), rows)]
    return "\n\n".join(parts) + "\n"


def _chosen(choices: Choices, results: Mapping[str, Result]) -> str:
    families = dict.fromkeys(result.chosen.family for result in results.values())
    rows = []
    for family in families:
        tried = choices.tried[family]
        count = max(len(tried.questions), len(tried.captions))
        purposes = [*([QUESTIONS] if tried.questions else []), *([CAPTIONS, NEAR, BOTH] if tried.captions else [])]
        purposes += [PUBLISHED] if PUBLISHED in tried.chosen else []
        rows += [(family, str(count), purpose, tried.chosen.get(purpose, "none passes")) for purpose in purposes]
    return _markdown(("family", "settings tried", "chosen for", "setting"), rows)


def _cell(key: str, value: Rate | float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, Rate) else f"{value:.{_DIGITS[key]}f}"


def difference_text(found: Difference) -> str:
    """In points, with its interval; in bold if that leaves out 0."""
    text = f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    return text if found.is_noise else f"**{text}**"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
