"""`mgap score hallusionbench`: score a file of answers to HallusionBench's questions."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.errors import BenchmarkError
from mgap.io.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mgap.benchmarks.hallusionbench.scorer import HallusionBenchScorer, JudgedAnswer

_RATES = {"aAcc": "accuracy"}  # the scorer's own name
_SHOWN = {  # the table's rows: a figure as JSON names it, and in words
    "aAcc": "aAcc, all questions",
    "fAcc": "fAcc, whole figures",
    "qAcc": "qAcc, whole pairs",
    "mean_of_three": "mean of three, VLMEvalKit's headline",
    "easy_pairs": "easy pairs",
    "hard_pairs": "hard pairs",
    "yes_ratio": "says yes",
}


def hallusionbench(
    answers: Annotated[
        str, typer.Option(help="JSON lines with question_id and text, or the authors' array with model_prediction.")
    ],
    data: Annotated[str | None, typer.Option(help="Folder with HallusionBench.json; default: download it.")] = None,
    parser: Annotated[
        str, typer.Option(autocompletion=completion.parser, help="How to read yes and no (`mgap ls parsers`).")
    ] = "refusals-unread",
    counting: Annotated[
        str, typer.Option(help="authors: all questions; vlmevalkit: those with a picture, also lmms-eval's.")
    ] = "authors",
    missing: Annotated[
        str, typer.Option(help="Unanswered questions: refuse, or skip, with the pairs and figures that they belong to.")
    ] = "refuse",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: [right, of] with intervals, also by subcategory.")
    ] = False,
) -> None:
    """Score answers to HallusionBench as its authors or as VLMEvalKit count, read by rule instead of by a judge model.

    Example: mgap score hallusionbench --answers answers.jsonl --counting vlmevalkit
    """
    from mgap.benchmarks.hallusionbench.predictions import read_answers
    from mgap.benchmarks.hallusionbench.questions import read_file, samples_of
    from mgap.benchmarks.hallusionbench.scorer import HallusionBenchScorer
    from mgap.benchmarks.published_files import find_data

    empty = HallusionBenchScorer({}, parser=parser, counting=counting)  # refuses a setting before anything is fetched
    questions = read_file(find_data("hallusionbench", data))
    scorer = replace(empty, visual_input={question.id: question.visual_input for question in questions})
    texts, notes = read_answers(answers, {q.id: q.text for q in questions}, list(scorer.counted), missing)
    for note in notes:
        print(f"mgap: note: {note}", file=sys.stderr)
    verdicts = scorer.judge([sample for sample in samples_of(questions) if sample.id in texts], texts)
    if not verdicts:
        raise BenchmarkError(f"{answers}: none of its answers is to a question that is counted; use counting=authors")
    figures = _figures(scorer, verdicts)
    if as_json:
        print(strict_json(figures, indent=1))
    else:
        _print_table(figures)


def _figures(scorer: HallusionBenchScorer, verdicts: Sequence[JudgedAnswer]) -> dict[str, Any]:
    from mgap.benchmarks.hallusionbench.authors_script import yes_bias
    from mgap.benchmarks.hallusionbench.questions import CATEGORIES, QuestionId

    groups: dict[str, list[JudgedAnswer]] = {"all": list(verdicts)}
    subcategories: dict[str, list[JudgedAnswer]] = {}
    for verdict in verdicts:
        place = QuestionId.of(verdict.id)
        groups.setdefault(place.category, []).append(verdict)
        subcategories.setdefault(f"{place.category}_{place.subcategory}", []).append(verdict)
    unread = [verdict for verdict in verdicts if verdict.said is None]
    return {
        "questions": len(verdicts),
        **scorer.settings(),
        **{name: _group(scorer, groups[name]) for name in ("all", *CATEGORIES) if name in groups},
        "subcategories": {name: _group(scorer, members) for name, members in subcategories.items()},
        "unclear": {
            "with_picture": sum(verdict.visual_input > 0 for verdict in unread),
            "without_picture": sum(verdict.visual_input == 0 for verdict in unread),
            "counted_as_right": sum(verdict.is_right for verdict in unread),
        },
        "incomplete": {"figures": scorer.incomplete(verdicts, "fAcc"), "pairs": scorer.incomplete(verdicts, "qAcc")},
        "yes_bias": yes_bias(verdicts),
    }


def _group(scorer: HallusionBenchScorer, verdicts: Sequence[JudgedAnswer]) -> dict[str, Any]:
    from mgap.benchmarks.hallusionbench.authors_script import errors_by_cause, figure_outcomes
    from mgap.benchmarks.hallusionbench.scorer import GROUPS

    wholes = {kind: scorer.wholes(verdicts, kind) for kind in GROUPS}
    rates = scorer.tally_of(verdicts).rates()
    outcomes = figure_outcomes(verdicts, wholes["fAcc"])
    return {
        "aAcc": [sum(verdict.is_right for verdict in verdicts), len(verdicts)],
        **{kind: [sum(found.values()), len(found)] for kind, found in wholes.items()},
        **{name: rates[name].value for name in ("mean_of_three", "yes_ratio")},
        "intervals": {name: [rates[of].low, rates[of].high] for name, of in ((n, _RATES.get(n, n)) for n in _SHOWN)},
        "undefined": [name for name in _SHOWN if rates[_RATES.get(name, name)].of == 0],
        "figures_inconsistent": outcomes["inconsistent"],
        "figures_wrong": outcomes["wrong"],
        "errors": errors_by_cause(verdicts),
    }


def _print_table(figures: dict[str, Any]) -> None:
    unclear = figures["unclear"]
    print(
        f"{figures['questions']:,} questions, counted by {figures['counting']}, read by {figures['parser']}; unclear: "
        f"{unclear['with_picture']} with a picture, {unclear['without_picture']} without ({unclear['counted_as_right']} of "
        "them count as right)"
    )
    if any(lacking := figures["incomplete"].values()):
        print("{} figures and {} pairs lack an answer and are not counted".format(*lacking))
    groups = [name for name in ("all", "VD", "VS") if name in figures]
    print(" " * 38 + "".join(f"{name:<34}" for name in groups).rstrip())
    for name, words in _SHOWN.items():
        print(f"{words:<38}" + "".join(f"{_cell(figures[group], name):<34}" for group in groups).rstrip())


def _cell(group: dict[str, Any], name: str) -> str:
    """A share in percent with its interval, and its counts if it has any."""
    if name in group["undefined"]:
        return "     -"
    value, (low, high) = group[name], group["intervals"][name]
    right, of = value if isinstance(value, list) else (value, 1.0)
    counts = f"  {right}/{of}" if isinstance(value, list) else ""
    return f"{100 * right / of:6.2f}  [{100 * low:.2f}, {100 * high:.2f}]{counts}"
