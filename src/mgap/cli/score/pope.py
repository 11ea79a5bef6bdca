"""`mgap score pope`: score a file of answers to POPE's questions."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import Relabel, RelabelData, new_labels
from mgap.errors import SettingError
from mgap.io.strict_json import strict_json

if TYPE_CHECKING:
    from mgap.benchmarks.repope.new_labels import NewLabels, Relabelling
    from mgap.benchmarks.yesno_questions import YesNoQuestion

DIVIDES = ZeroDivisionError.__name__
Pairs = list[tuple["YesNoQuestion", str | None]]


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
    relabel: Relabel = None,
    data: RelabelData = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all decimals.")] = False,
) -> None:
    """Score answers to one split of POPE, as mgap does or exactly as a published project does.

    Example: mgap score pope --questions coco_pope_popular.json --answers answers.jsonl --parser llava
    """
    from mgap.benchmarks.pope.answer_files import pair_answers, settle_missing
    from mgap.benchmarks.pope.conventions import CONVENTIONS
    from mgap.benchmarks.pope.questions import read_questions
    from mgap.benchmarks.yesno_parsers import find_parser

    parse = find_parser(parser)
    if missing == "wrong" and parser in CONVENTIONS and CONVENTIONS[parser].unanswered:
        raise SettingError(
            f"--missing wrong: {parser} leaves an answer that it cannot read out of every figure, so none can count as wrong; "
            "use --missing skip, or another parser"
        )
    labels = new_labels(relabel, data)
    split, notes = read_questions(questions)
    if parse.needs_label:
        notes.append(
            f"{parser} looks at the label before it reads an answer: compare with papers that do, and with nothing else"
        )
    pairs = pair_answers(answers, split)
    facts: dict[str, Any] = {}
    if labels is None:
        pairs, more = settle_missing(answers, pairs, missing)
        by_labels, heading = {"pope": pairs}, f"{len(pairs):,} questions, "
    else:
        by_labels, change, more = _relabel(labels, questions, answers, pairs, missing)
        facts, heading = {"relabel": relabel, **asdict(change)}, f"{change}\n"
    for note in notes + more:
        print(f"mgap: note: {note}", file=sys.stderr)
    figures = {name: _score(parser, each, missing) for name, each in by_labels.items()}
    if as_json:
        print(strict_json({**facts, **figures} if facts else figures["pope"], indent=1))
        return
    unread = " and ".join(f"{_count_unread(parser, each):,}" for each in by_labels.values())
    print(f"{heading}read by {parser}; {unread} answers say neither yes nor no")
    _print_figures(figures)


def _relabel(
    labels: NewLabels, questions: str, answers: str, pairs: Pairs, missing: str
) -> tuple[dict[str, Pairs], Relabelling, list[str]]:
    """The pairs to score on POPE's and on RePOPE's labels, what became of the questions, and notes."""
    from mgap.benchmarks.pope.answer_files import settle_missing
    from mgap.benchmarks.repope.new_labels import Relabelling

    asked = [question for question, _ in pairs]
    after = labels.look_up([(question.image, question.text) for question in asked], questions)
    notes = labels.note_on_ids(questions, asked)
    fates = list(zip(pairs, after, strict=True))
    if unused := sum(label is None and text is not None for (_, text), label in fates):
        notes.append(f"{answers}: {unused} answers are to questions that RePOPE dropped, and are in POPE's figures only")
    kept = [(question._replace(label=label), text) for (question, text), label in fates if label is not None]
    kept, more = settle_missing(answers, kept, missing)
    on_pope = pairs if missing == "refuse" else settle_missing(answers, pairs, missing)[0]
    return (
        {"pope": on_pope, "repope": kept},
        Relabelling.of((question.label, label) for (question, _), label in fates),
        notes + more,
    )


def _verdicts(parser: str, pairs: Pairs) -> list[str | None]:
    from mgap.benchmarks.yesno_parsers import find_parser

    parse = find_parser(parser)
    return [None if text is None else parse(text, question.label) for question, text in pairs]


def _count_unread(parser: str, pairs: Pairs) -> int:
    return _verdicts(parser, [pair for pair in pairs if pair[1] is not None]).count(None)


def _score(parser: str, pairs: Pairs, missing: str) -> dict[str, Any]:
    """The figures; an error where the parser's project has none, or where only dropped questions have no answer."""
    from mgap.benchmarks.pope.conventions import CONVENTIONS, figures_as
    from mgap.benchmarks.pope.scorer import named_counts, outcomes, tally_verdicts
    from mgap.types import Sample

    if missing == "refuse" and (unanswered := sum(text is None for _, text in pairs)):
        stops = CONVENTIONS[parser].unanswered if parser in CONVENTIONS else ""
        return {"error": stops or f"{unanswered} of {len(pairs)} questions have no answer"}
    verdicts = _verdicts(parser, pairs)
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


def _print_figures(by_labels: dict[str, dict[str, Any]]) -> None:
    """A line a figure; those on POPE's and on RePOPE's labels side by side."""
    titles = ("  POPE", "RePOPE") if len(by_labels) > 1 else ("",)
    columns = []
    for title, figures in zip(titles, by_labels.values(), strict=True):
        if error := figures.get("error"):
            why = f"no yes is right, and there this project's scorer stops with a {error}" if error == DIVIDES else error
            print(f"{title.strip()}: no figures: {why}".removeprefix(": "))
        columns.append(({"": title} if title else {}) | _texts(figures))
    width = max((len(text) for text in columns[0].values()), default=0) + 3
    for name in dict.fromkeys(name for texts in columns for name in texts):
        cells = "".join(f"{texts.get(name, ''):<{width}}" for texts in columns)
        print(f"{name:<10} {cells}".rstrip())


def _texts(figures: dict[str, Any]) -> dict[str, str]:
    """Counts, and rates in percent with their intervals, by name."""
    intervals, undefined, texts = figures.get("intervals", {}), figures.get("undefined", ()), {}
    for name, value in figures.items():
        if isinstance(value, float):
            scale = 1 if name == "words" else 100
            spread = f"  [{scale * intervals[name][0]:.2f}, {scale * intervals[name][1]:.2f}]" if name in intervals else ""
            texts[name] = f"{scale * value:>6.2f}{spread}{'  (0 out of 0)' if name in undefined else ''}"
        elif name in ("TP", "FP", "TN", "FN"):
            texts[name] = f"{value:>6}"
    return texts
