"""`mgap report FOLDER...`: tables and a page from one run, or from several side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mgap.cli.options import (
    Against,
    Language,
    MatchLength,
    MatchRecall,
    Parser,
    Scoring,
    Unfinished,
    score_run,
    working,
)
from mgap.errors import SettingError


def report(
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER...", help="Folders that `mgap run` wrote.")],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Folder to write to; default: the run's own, or the parent of several runs."),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(help="Backbone whose published figures to show, such as LLaVA-1.5-7B; default: the model's family."),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write figures for print to OUT/figures, as PDF, SVG, PNG and CSV.")
    ] = False,
    against: Against = None,
    match_length: MatchLength = False,
    match_recall: MatchRecall = False,
    parser: Parser = None,
    language: Language = None,
    unfinished: Unfinished = None,
    settings: Scoring = None,
) -> None:
    """Write report.html, report.md, report.tex and report.json from a run's answers, without a model.

    Example: mgap report runs/pope-main --figures
    """
    from mgap.io.output_folder import check_folder, write_files
    from mgap.io.regular_files import inside
    from mgap.pages.print_figures import FIGURES
    from mgap.reports.printed.catalogue import draw_prints, save_prints
    from mgap.reports.report import FILES, report_files

    target = _target(folders, out)
    check_folder(target, FILES)
    if figures:
        check_folder(inside(target, FIGURES), ())
    runs = [
        score_run(folder, against, match_length, parser, language, settings, match_recall=match_recall, unfinished=unfinished)
        for folder in folders
    ]
    for scores in runs:
        for text in scores.warnings:
            print(f"mgap: warning: {scores.run.folder}: {text}", file=sys.stderr)
    with working("writing the report"):
        prints = draw_prints(runs, beside) if figures else []  # first: refuses a run without figures before anything is written
        paths = write_files(target, report_files(runs, beside=beside, prints=prints))
        paths += save_prints(prints, inside(target, FIGURES)) if prints else []
    for path in paths:
        print(path)


def _target(folders: list[str], out: str | None) -> Path:
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise SettingError("a folder is named twice: name each run once")
    if out is not None:
        return Path(out)
    if len(folders) == 1:
        return Path(folders[0])
    parents = {Path(folder).resolve().parent for folder in folders}
    if len(parents) > 1:
        raise SettingError("these runs lie in different folders: say with --out where the report goes")
    return Path(folders[0]).parent
