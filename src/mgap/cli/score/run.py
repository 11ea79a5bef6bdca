"""`mgap score FOLDER`: score a run again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mgap.cli.options import (
    Against,
    Language,
    MatchLength,
    MatchRecall,
    Parser,
    Relabel,
    RelabelData,
    Scoring,
    Unfinished,
    Wide,
    new_labels,
    print_scores,
    score_run,
)
from mgap.io.strict_json import strict_json


def run(
    folder: Annotated[str, typer.Argument(help="A folder that `mgap run` wrote.")],
    against: Against = None,
    match_length: MatchLength = False,
    match_recall: MatchRecall = False,
    parser: Parser = None,
    language: Language = None,
    unfinished: Unfinished = None,
    settings: Scoring = None,
    relabel: Relabel = None,
    data: RelabelData = None,
    wide: Wide = False,
) -> None:
    """Score a run again, without a model: print the tables and write scores.json, or scores.repope.json, into its folder.

    Example: mgap score runs/pope-main --parser vcd
    """
    from mgap.io.output_folder import check_folder, write_files
    from mgap.reports.relabelled import RELABELLED_SCORES
    from mgap.reports.scores import SCORES

    labels = new_labels(relabel, data)
    name = SCORES if labels is None else RELABELLED_SCORES
    check_folder(folder, [name])
    scores = score_run(
        folder, against, match_length, parser, language, settings, labels, match_recall=match_recall, unfinished=unfinished
    )
    print_scores(scores, wide=wide)
    (written,) = write_files(folder, {name: strict_json(scores.to_json(), indent=1, ensure_ascii=False) + "\n"})
    print(f"wrote {written}", file=sys.stderr)
