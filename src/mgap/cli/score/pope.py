"""`mgap score pope`: score a file of answers to POPE's questions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.io.strict_json import strict_json

if TYPE_CHECKING:
    from mgap.benchmarks.yesno_questions import YesNoQuestion


def pope(
    questions: Annotated[str, typer.Option(help="A split in POPE's format: JSON array or JSON lines.")],
    answers: Annotated[
        str, typer.Option(help="JSON lines with question_id and text, or with question and answer in the same order.")
    ],
    parser: Annotated[
        str,
        typer.Option(autocompletion=completion.parser, help="How to read and count answers (`mgap ls parsers`)."),
    ] = "first-sentence",
    missing: Annotated[str, typer.Option(help="Unanswered questions: refuse, wrong (count as wrong) or skip.")] = "refuse",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all decimals.")] = False,
) -> None:
    """Score answers to one split of POPE, as mgap does or exactly as a published project does.

    Example: mgap score pope --questions coco_pope_popular.json --answers answers.jsonl --parser llava
    """
    from mgap.benchmarks.pope.answer_files import read_answers
    from mgap.benchmarks.pope.questions import read_questions
    from mgap.benchmarks.yesno_parsers import find_parser

    parse = find_parser(parser)
    split, notes = read_questions(questions)
    pairs, missing_notes = read_answers(answers, split, missing)
    if parse.needs_label:
        notes.append(
            f"{parser} looks at the label before it reads an answer: compare with papers that do, and with nothing else"
        )
    for note in notes + missing_notes:
        print(f"mgap: note: {note}", file=sys.stderr)
    verdicts = [None if text is None else parse(text, question.label) for question, text in pairs]
    figures = _score(parser, pairs, verdicts)
    if as_json:
        print(strict_json(figures, indent=1))
    else:
        print(f"{len(pairs):,} questions, read by {parser}; {verdicts.count(None):,} answers say neither yes nor no")
        _print_figures(figures)


def _score(parser: str, pairs: list[tuple[YesNoQuestion, str | None]], verdicts: list[str | None]) -> dict[str, Any]:
    from mgap.benchmarks.pope.conventions import CONVENTIONS, figures_as
    from mgap.benchmarks.pope.scorer import named_counts, outcomes, tally_verdicts
    from mgap.types import Sample

    if parser in CONVENTIONS:
        return figures_as(parser, outcomes([question.label for question, _ in pairs], verdicts).sum(0))
    samples = [Sample(question.id, question.image, question.text, "all", question.label) for question, _ in pairs]
    tally = tally_verdicts(samples, verdicts, [text or "" for _, text in pairs])
    rates = tally.rates()
    return {
        **named_counts(tally.counts.sum(0)),
        **{name: rate.value for name, rate in rates.items()},
        "unparsed": tally.unparsed,
        "questions": len(pairs),
        "undefined": [name for name, rate in rates.items() if rate.of == 0],
        "intervals": {name: [rate.low, rate.high] for name, rate in rates.items()},
    }


def _print_figures(figures: dict[str, Any]) -> None:
    if "error" in figures:
        print(f"no figures: no yes is right, and there this project's scorer stops with a {figures['error']}")
    intervals, undefined = figures.get("intervals", {}), figures.get("undefined", ())
    for name, value in figures.items():
        if isinstance(value, float):
            scale = 1 if name == "words" else 100
            spread = f"  [{scale * intervals[name][0]:.2f}, {scale * intervals[name][1]:.2f}]" if name in intervals else ""
            print(f"{name:<10} {scale * value:>6.2f}{spread}{'  (0 out of 0)' if name in undefined else ''}")
        elif name in ("TP", "FP", "TN", "FN"):
            print(f"{name:<10} {value:>6}")
