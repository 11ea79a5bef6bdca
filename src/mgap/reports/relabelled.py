"""Runs of COCO's POPE on RePOPE's labels too (Neuhaus and Hein, 2025): the same answers, scored and compared on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mgap.benchmarks.repope.new_labels import NAME, NewLabels, labels_at_hand, read_new_labels
from mgap.errors import MgapError, SettingError
from mgap.pages.html_page import Cell, RowGroup, Table, TableRow
from mgap.reports.score_tables import RELABELLED_F1, paired_tables, run_names, score_tables
from mgap.reports.scores import Part, Relabelled, Scores, score
from mgap.run.records import Run

RELABELLED_SCORES = "scores.repope.json"  # beside scores.json, where new labels are asked for
COCO_POPE = "pope coco"  # the benchmark's name in run.json
Value = TypeVar("Value")


def beside_new_labels(scores: Scores) -> Scores:
    """The scores with those on RePOPE's labels, if its files are at hand, else with the reason why not; nothing is fetched.

    Scores of other runs stay as they are.
    """
    if not _asked_coco_pope(scores.run):
        return scores
    place = labels_at_hand(scores.run.plan["benchmark"].get("sources") or {})
    if place is None:
        why = f"RePOPE's labels are not on this machine, so nothing was scored on them: mgap fetch {NAME}"
        return replace(scores, relabelled=Relabelled(why_not=why))
    try:
        return on_new_labels(scores, read_new_labels(place))
    except MgapError as error:  # such as questions of somebody's own under POPE's names
        return replace(scores, relabelled=Relabelled(why_not=f"nothing was scored on RePOPE's labels: {error}"))


def on_new_labels(scores: Scores, labels: NewLabels) -> Scores:
    """The scores with those of the same answers on RePOPE's labels; each F1 has the other beside it. Refuses other runs."""
    run, benchmark = scores.run, scores.run.plan["benchmark"]
    if not _asked_coco_pope(run):
        raise SettingError(f"{run.folder}: its answers are to {benchmark['name']}, and RePOPE labelled POPE on COCO only")
    samples, changes = labels.relabel(run.samples, run.folder)
    sources = {**(benchmark.get("sources") or {}), **labels.sources}
    plan = {**run.plan, "benchmark": {**benchmark, "name": f"{COCO_POPE}, labelled by RePOPE", "sources": sources}}
    settings = {name: value for name, value in scores.scorer.items() if name != "task"}
    other = score(replace(run, samples=tuple(samples), plan=plan), against=scores.baseline, **settings)
    found = {(label, name): part for label, result in other.results.items() for name, part in result.groups.items()}
    results = {
        label: replace(result, groups={name: _with_f1(part, found.get((label, name))) for name, part in result.groups.items()})
        for label, result in scores.results.items()
    }
    figures = _behind_f1(scores.figures, other.figures)
    return replace(scores, results=results, figures=figures, relabelled=Relabelled(other, changes))


def relabelled_tables(runs: Sequence[Scores]) -> list[Table]:
    """What became of the questions, and the tables of results and differences on the new labels."""
    told = [(name, s.relabelled) for name, s in zip(run_names(runs), runs, strict=True) if s.relabelled is not None]
    others = [relabelled.scores for _, relabelled in told if relabelled.scores is not None]
    if not others:
        return []
    groups = [
        RowGroup(
            name if len(runs) > 1 else "",
            tuple(
                TableRow(
                    split.capitalize(), tuple(Cell(f"{n:,}") for n in (c.kept, c.dropped, c.flipped_to_no, c.flipped_to_yes))
                )
                for split, c in relabelled.changes.items()
            ),
        )
        for name, relabelled in told
        if relabelled.scores is not None
    ]
    caption = "What became of the questions when RePOPE's authors labelled POPE's pictures again."
    counts = Table(caption, ("Split", "Kept", "Dropped", "Turned to no", "Turned to yes"), groups)
    tables = [*score_tables(others), *paired_tables(others)]
    return [counts, *(replace(table, caption=f"On RePOPE's labels. {table.caption}") for table in tables)]


def _asked_coco_pope(run: Run) -> bool:
    return run.plan["benchmark"]["name"] == COCO_POPE and not run.plan.get("departure")


def _with_f1(part: Part, other: Part | None) -> Part:
    if other is None:  # none of the split's scored questions was kept
        return part
    against = part.against
    if against is not None and other.against is not None:
        against = replace(against, differences=_behind_f1(against.differences, other.against.differences))
    return replace(part, rates=_behind_f1(part.rates, other.rates), against=against)


def _behind_f1(values: Mapping[str, Value], others: Mapping[str, Value]) -> dict[str, Value]:
    """The values by figure, with the others' F1 behind their own."""
    both: dict[str, Value] = {}
    for name, value in values.items():
        both |= {name: value, RELABELLED_F1: others["f1"]} if name == "f1" else {name: value}
    return both
