"""Analyses of `mgap diagnose` besides distances, read from the run's folder: tables for the report, figures for print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mgap.diagnosis.manifold_figure import ManifoldPicture, print_manifold
from mgap.diagnosis.representation import Representation
from mgap.diagnosis.representation_tables import representation_tables
from mgap.diagnosis.subspace_analysis import ModelComparison, SubspaceAnalysis
from mgap.diagnosis.subspace_figures import print_subspaces
from mgap.diagnosis.subspace_tables import models_table, subspace_tables
from mgap.errors import CorruptFile, one_line
from mgap.io.strict_json import load_json
from mgap.pages.html_page import Table
from mgap.pages.print_figures import Print
from mgap.reports.printed.reach import print_reach
from mgap.reports.scores import Scores
from mgap.run.records import ANALYSES, analysis_file

HEADINGS = {
    "representation": "Where the states are moved to",
    "subspace": "The prior's subspace",
    "models": "The prior beside another model's",
}
_TABLES: dict[str, Callable[[Any], list[Table]]] = {
    "representation": lambda data: representation_tables(Representation.from_json(data)),
    "subspace": lambda data: subspace_tables(SubspaceAnalysis.from_json(data)),
    "models": lambda data: [models_table(ModelComparison.from_json(data))],
}


def analysis_tables(folder: Path, name: str) -> list[Table]:
    """The tables of one analysis in a run's folder; none if it was not measured."""
    data = _read(analysis_file(folder, name))
    with _refusing_damage(analysis_file(folder, name)):
        return [] if data is None else _TABLES[name](data)


def analysis_prints(run: str, scores: Scores) -> list[Print]:
    """The figures that were measured, of: the manifold with the methods' paths, departures by shift, spectrum and angles."""
    folder = scores.run.folder
    names = ("picture", "subspace", "representation")
    picture, subspace, representation = (_read(analysis_file(folder, name)) for name in names)
    with _refusing_damage(folder / ANALYSES):
        prints = [] if picture is None else [print_manifold(ManifoldPicture.from_json(picture))]
        reach = None if representation is None else print_reach(run, scores, Representation.from_json(representation))
        prints += [] if reach is None else [reach]
        return prints if subspace is None else [*prints, *print_subspaces(subspace)]


@contextmanager
def _refusing_damage(path: Path) -> Iterator[None]:
    """Turn errors from missing or malformed values into a CorruptFile."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path}: damaged ({one_line(error)}); remove it, and run mgap diagnose again") from error


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return load_json(path)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path}: no JSON ({error}); remove it, and run mgap diagnose again") from None
