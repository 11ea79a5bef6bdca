"""`mgap score FOLDER`: score the answers of a run again."""

from __future__ import annotations

from typing import Annotated

import typer


def run(folder: Annotated[str, typer.Argument(help="A folder that `mgap run` wrote.")]) -> None:
    """Score the answers of a run's folder, without a model.

    Example: mgap score runs/pope-main
    """
    from mgap.reports.records import Run

    found = Run.load(folder)
    for arm in found.arms:
        print(f"{arm.label}: {len(found.records(arm))} of {len(found.samples)} answered")
