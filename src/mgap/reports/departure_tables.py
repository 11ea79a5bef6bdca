"""Departures along whole answers, step by step: tables, plots, and plain counts for your own figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mgap.benchmarks.statistics import Rate
from mgap.diagnosis.departure_by_step import ANSWERS, DISTANCE, OWN, STEP_RANGES, STEPS, departed_by_step, distance_name
from mgap.pages.html_page import NO_VALUE, Cell, RowGroup, Table, TableRow
from mgap.pages.plots import Plot, plot_lines
from mgap.reports.score_tables import cell, run_names
from mgap.reports.scores import Kind, Scores

_SHARE = Kind(percent=True, better="lower")


def is_by_step(scores: Scores) -> bool:
    """Whether a run measured departures along answers, at every step."""
    return (scores.run.plan.get("departure") or {}).get("along") == "answers"


def departures_by_step(scores: Scores) -> dict[str, dict[str, list[tuple[int, int, int]]]]:
    """By method and strength, (step, departed, of): how many of the answers that have this step have departed at it.

    Steps count from 1. Failed answers are left out. Plain decoding has strength "0" only; a method without a strength setting
    has "own".
    """
    run, tau = scores.run, float(scores.run.plan["departure"]["tau"])
    return {method.label: departed_by_step(run.records(method).values(), tau) for method in run.methods}


def step_tables(runs: Sequence[Scores]) -> list[Table]:
    """Two tables by strength: departed steps, answers with one and mean distances; then departed steps by step range."""
    runs = [scores for scores in runs if is_by_step(scores)]
    if not runs:
        return []
    strengths = _strengths(runs)
    columns = ("Method", *(f"{key} \u2193" for key in strengths))
    notes = _notes(strengths)
    titles = {
        STEPS: "Departed steps, percent",
        ANSWERS: "Answers with a departed step, percent",
        DISTANCE: "Mean distance to the nearest plain states",
    }
    overall = [
        RowGroup(_heading(runs, name, title), tuple(_rows(scores, group, strengths)))
        for group, title in titles.items()
        for name, scores in zip(run_names(runs), runs, strict=True)
    ]
    by_range = [
        RowGroup(_heading(runs, name, group[:1].upper() + group[1:]), tuple(_rows(scores, group, strengths)))
        for group in STEP_RANGES
        for name, scores in zip(run_names(runs), runs, strict=True)
    ]
    return [
        Table(
            "Steps of whole answers whose state lies farther than tau from those of plain decoding, by the strength of the "
            "method, with 95% intervals from a bootstrap over pictures. \u2193: lower is better.",
            columns,
            [group for group in overall if group.rows],
            notes=notes,
        ),
        Table(
            "Percent of the steps that have departed, by their place in the answer.",
            columns,
            [group for group in by_range if group.rows],
            notes=notes,
        ),
    ]


def step_plots(scores: Scores, labels: Sequence[str], key: str) -> Iterator[Plot]:
    """The share of departed steps along the answer: a plot for each strength, with a line for each of these methods."""
    strengths = [name for name in _strengths([scores]) if name not in ("0", OWN)]
    for strength in strengths or ["0"]:
        lines = {
            label: _points(scores, label, strength) or _points(scores, label, OWN) or _points(scores, label, "0")
            for label in labels
        }
        if any(len(points) > 1 for points in lines.values()):  # every label keeps its line: plots share a legend
            title = "Departed steps" if strength == "0" else f"Departed steps at strength {strength}"
            yield plot_lines(title, lines, "step, from", f"{key} {labels[0]}")


def _points(scores: Scores, label: str, strength: str) -> dict[float, Rate]:
    """Rates by the first step of each range."""
    groups = scores.results[label].groups
    rates = {first: groups[name].rates.get(strength) for name, (first, _) in STEP_RANGES.items() if name in groups}
    return {float(first): rate for first, rate in rates.items() if rate is not None and rate.of}


def _strengths(runs: Sequence[Scores]) -> list[str]:
    """The strengths in ascending order, then "own"."""
    keys = {key for s in runs for result in s.results.values() if STEPS in result.groups for key in result.groups[STEPS].rates}
    return sorted(keys - {OWN}, key=float) + sorted(keys & {OWN})


def _rows(scores: Scores, group: str, strengths: Sequence[str]) -> Iterator[TableRow]:
    for label, result in scores.results.items():
        if group in result.groups:
            rates = result.groups[group].rates
            by_strength = (rates.get(distance_name(key) if group == DISTANCE else key) for key in strengths)
            as_cell = _distance if group == DISTANCE else _percent
            yield TableRow(label, tuple(NO_VALUE if rate is None else as_cell(rate) for rate in by_strength))


def _percent(rate: Rate) -> Cell:
    return cell(rate, _SHARE)


def _distance(rate: Rate) -> Cell:
    return Cell(f"{rate.value:.3g}", f"{rate.low:.3g} to {rate.high:.3g}") if rate.of else NO_VALUE


def _notes(strengths: Sequence[str]) -> tuple[str, ...]:
    if OWN not in strengths:
        return ()
    return (f"{OWN}: the strength is no setting of this method; it is measured once, at what it finds for every token.",)


def _heading(runs: Sequence[Scores], name: str, title: str) -> str:
    return f"{title}, {name}" if len(runs) > 1 else title
