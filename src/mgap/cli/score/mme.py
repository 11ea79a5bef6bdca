"""`mgap score mme`: score a file or a folder of answers to MME's questions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import Data
from mgap.io.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mgap.benchmarks.tally import Tally


def mme(
    answers: Annotated[
        str,
        typer.Option(
            help="Folder of TASK.txt with four columns; JSON lines with task, image, question and text, or LLaVA's; or "
            "answers/METHOD of a run."
        ),
    ],
    data: Data = None,
    parser: Annotated[
        str,
        typer.Option(
            autocompletion=completion.mme_parser, help="How to read answers: mme, lmms_eval, vlmevalkit or first-sentence."
        ),
    ] = "mme",
    missing: Annotated[
        str, typer.Option(help="Unanswered questions: refuse, wrong (count as wrong) or skip (leave out their pictures).")
    ] = "refuse",
    write_official: Annotated[
        str | None, typer.Option(help="Also write the answers to this folder as TASK.txt, for the official script.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all decimals.")] = False,
) -> None:
    """Score answers to MME by task, and every sum whose tasks are all answered.

    Example: mgap score mme --answers answers.jsonl --parser mme
    """
    from mgap.benchmarks.mme import paired_answers
    from mgap.benchmarks.mme.questions import ALL, find_questions, read_questions
    from mgap.benchmarks.mme.scorer import MmeScorer
    from mgap.benchmarks.published_files import find_data
    from mgap.io.output_folder import check_folder
    from mgap.types import Sample

    scorer = MmeScorer(parser)
    given = paired_answers.read_given(answers)
    tasks = [task for task in ALL if any(each.task == task for each in given)]
    if write_official is not None:
        check_folder(write_official, [f"{task}.txt" for task in tasks])
    files = find_questions(find_data("mme", data), tasks)
    questions = [question for task, path in files.items() for question in read_questions(path, task)]
    pairs, notes = paired_answers.pair_answers(answers, questions, given, missing)
    for note in notes:
        print(f"mgap: note: {note}", file=sys.stderr)
    samples = [Sample(q.id, q.image, q.text, q.image.partition("/")[0], q.label) for q, _ in pairs]
    tallies = scorer.tally(samples, {question.id: text for question, text in pairs})
    figures = _figures(parser, {task: tallies[task] for task in tasks if task in tallies})
    if as_json:
        print(strict_json(figures, indent=1))
    else:
        _print_figures(figures, scorer.remark)
    if write_official is not None:
        for path in paired_answers.write_official(write_official, pairs):
            print(f"wrote {path}", file=sys.stderr)


def _figures(parser: str, tallies: Mapping[str, Tally]) -> dict[str, Any]:
    from mgap.benchmarks.mme.scorer import LEVELS, TOTALS, add_tasks

    sums = {**LEVELS, **TOTALS}
    totals = {name: add_tasks(tallies, of).rates()["total"] for name, of in sums.items() if tallies.keys() >= set(of)}
    return {
        "parser": parser,
        "questions": sum(len(tally.right) for tally in tallies.values()),
        "pictures": sum(len(tally.pictures) for tally in tallies.values()),
        "unparsed": sum(tally.unparsed for tally in tallies.values()),
        "tasks": {task: _task_figures(tally) for task, tally in tallies.items()},
        "totals": {name: rate.value for name, rate in totals.items()},
        "intervals": {name: [rate.low, rate.high] for name, rate in totals.items()},
        "incomplete": {name: [task for task in of if task not in tallies] for name, of in sums.items() if name not in totals},
    }


def _task_figures(tally: Tally) -> dict[str, Any]:
    from mgap.benchmarks.pope.scorer import named_counts

    rates = tally.rates()
    return {
        **{name: rate.value for name, rate in rates.items()},
        **named_counts(tally.counts.sum(0)),
        "questions": len(tally.right),
        "pictures": len(tally.pictures),
        "unparsed": tally.unparsed,
        "undefined": [name for name, rate in rates.items() if rate.of == 0],
        "intervals": {name: [rate.low, rate.high] for name, rate in rates.items()},
    }


def _print_figures(figures: dict[str, Any], remark: str) -> None:
    print(
        f"{figures['questions']:,} questions about {figures['pictures']:,} pictures, read by {figures['parser']}; "
        f"{figures['unparsed']:,} answers say neither yes nor no"
    )
    print(f"{'':<22} {'accuracy':>8} {'accuracy+':>9} {'score':>8} {'95% interval':>18} {'says yes':>8} {'unparsed':>8}")
    for task, each in figures["tasks"].items():
        accuracy, plus, says_yes = (f"{100 * each[name]:.2f}" for name in ("accuracy", "accuracy_plus", "yes_ratio"))
        score = _points(each["score"], each["intervals"]["score"])
        print(f"{task:<22} {accuracy:>8} {plus:>9} {score} {says_yes:>8} {each['unparsed']:>8}")
    for name, total in figures["totals"].items():
        print(f"{name.replace('_', ' '):<22} {'':>8} {'':>9} {_points(total, figures['intervals'][name])}")
    for name, absent in figures["incomplete"].items():
        print(f"no {name.replace('_', ' ')}: without {', '.join(absent)}")
    print(remark)


def _points(value: float, interval: list[float]) -> str:
    spread = f"[{interval[0]:.2f}, {interval[1]:.2f}]"
    return f"{value:>8.2f} {spread:>18}"
