"""Our figures beside published ones, in the layout of the published table."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.pages.html_page import NO_VALUE, Cell, RowGroup, Table, TableRow
from mgap.reports.published_figures import ALL, PublishedBackbone, PublishedFigures
from mgap.reports.score_tables import cell, clock, column, control_rows, efforts, run_names, seconds_cell
from mgap.reports.scores import Scores

TOTAL, SECONDS, RATIO = "total", "seconds", "ratio"  # columns computed from times, not by a scorer
_TITLES = {TOTAL: "Total time", SECONDS: "Seconds a sample \u2193", RATIO: "Times the baseline \u2193"}
NOTE_MARK = "\u2020"
CAVEAT = "other models and other pictures give other figures: compare directions, not values"


def published_of(scores: Scores) -> PublishedFigures | None:
    data = (scores.run.plan.get("experiment") or {}).get("published")
    return PublishedFigures.of_json(data) if data else None


def backbone_of(scores: Scores, name: str | None = None) -> PublishedBackbone | None:
    """The published backbone of this name, else of the model's family; None if the run's experiment has none."""
    published = published_of(scores)
    return None if published is None else published.beside(scores.run.plan.get("model", {}).get("family"), name)


def printed_values(scores: Scores, name: str | None = None) -> dict[tuple[str, str, str], float]:
    """Published percentages by method, group and figure, where the run has the same."""
    published, backbone, percents = published_of(scores), backbone_of(scores, name), dict[tuple[str, str, str], float]()
    if published is None or backbone is None:
        return percents
    for label in [label for label in scores.results if label in backbone.rows]:
        groups, printed = scores.results[label].groups, backbone.rows[label].figures
        for group, part in groups.items():
            values = printed.get(group, printed.get(ALL, ()) if len(groups) == 1 else ())
            for figure, value in zip(published.columns, values, strict=False):  # values may be empty
                if value is not None and figure in part.rates:
                    percents[label, group, figure] = value if published.of is None else 100 * value / published.of
    return percents


def beside_tables(runs: Sequence[Scores], name: str | None = None) -> list[Table]:
    """One table for every published table that the runs reproduce; `name` is the backbone's, default: the family's."""
    by_table: dict[str, tuple[PublishedFigures, list[tuple[str, Scores, PublishedBackbone]]]] = {}
    for run, scores in zip(run_names(runs), runs, strict=True):
        published = published_of(scores)
        backbone = backbone_of(scores, name)
        if published and backbone:
            by_table.setdefault(published.table, (published, []))[1].append((run, scores, backbone))
    return [_table(published, runs_of_table) for published, runs_of_table in by_table.values()]


def _table(published: PublishedFigures, runs: Sequence[tuple[str, Scores, PublishedBackbone]]) -> Table:
    backbones = list({backbone.name: backbone for _, _, backbone in runs}.values())
    columns = [(group, name) for group in _groups(backbones) for name in _columns(published)]
    ours = [label for _, scores, _ in runs for label in scores.results if label not in control_rows(scores)]
    labels = dict.fromkeys([label for backbone in backbones for label in backbone.rows] + ours)
    groups, notes = [], []
    for label in labels:
        rows = [
            TableRow(f"{run}, measured", _measured(published, s, label, columns)) for run, s, _ in runs if label in s.results
        ]
        for backbone in backbones:
            if label in backbone.rows:
                note = backbone.rows[label].note
                notes += [f"{NOTE_MARK} {backbone.name}, {label}: {note}"] if note else []
                mark = f" {NOTE_MARK}" if note else ""
                rows.append(TableRow(f"{backbone.name}, published{mark}", _printed(published, backbone, label, columns)))
        groups.append(RowGroup(label, tuple(rows)))
    names = " and ".join(f"{run} beside {backbone.name}" for run, _, backbone in runs)
    kinds = {name: kind for _, scores, _ in runs for name, kind in scores.figures.items()}
    titles = tuple(_TITLES.get(name) or column(name, kinds.get(name)) for _, name in columns)
    spans = (
        tuple((group[:1].upper() + group[1:], len(_columns(published))) for group in _groups(backbones))
        if _groups(backbones) != [ALL]
        else ()
    )
    caption = f"{published.table} of the paper: {names}. {published.note}".strip()
    if any(run != backbone.name for run, _, backbone in runs):
        caption += f" {CAVEAT.capitalize()}."
    return Table(caption, ("", *titles), groups, spans, tuple(notes))


def _groups(backbones: Sequence[PublishedBackbone]) -> list[str]:
    return list(dict.fromkeys(group for b in backbones for row in b.rows.values() for group in row.figures))


def _columns(published: PublishedFigures) -> tuple[str, ...]:
    return (*published.columns, RATIO) if SECONDS in published.columns else published.columns


def _measured(published: PublishedFigures, scores: Scores, label: str, columns: Sequence[tuple[str, str]]) -> tuple[Cell, ...]:
    if not scores.results[label].groups:
        return (NO_VALUE,) * len(columns)
    return tuple(_measured_cell(published, scores, label, group, name) for group, name in columns)


def _measured_cell(published: PublishedFigures, scores: Scores, label: str, group: str, name: str) -> Cell:
    result, effort = scores.results[label], efforts(scores)
    if name in (TOTAL, SECONDS, RATIO):
        own, base = effort[label], effort[scores.baseline]
        if not own.total or not base.total:
            return NO_VALUE
        ratio = f"{own.seconds.value / base.seconds.value:.2f}"
        return {TOTAL: Cell(clock(own.total)), SECONDS: seconds_cell(own.seconds), RATIO: Cell(ratio)}[name]
    matching = [part for g, part in result.groups.items() if name in part.rates and group in (ALL, g)]
    if len(matching) != 1:
        return NO_VALUE
    rate, kind = matching[0].rates[name], scores.figures[name]
    if published.of is not None and rate.of:
        return Cell(cell(rate, kind).text, f"{round(rate.value * rate.of)} of {rate.of}")
    return Cell(cell(rate, kind, published.digits).text, cell(rate, kind).small)


def _printed(
    published: PublishedFigures, backbone: PublishedBackbone, label: str, columns: Sequence[tuple[str, str]]
) -> tuple[Cell, ...]:
    figures = {
        (group, name): value
        for group, values in backbone.rows[label].figures.items()
        for name, value in zip(published.columns, values, strict=True)
    }
    first = next(iter(backbone.rows.values())).figures.get(ALL, ())
    if SECONDS in published.columns:
        seconds = figures[ALL, SECONDS]
        base = first[published.columns.index(SECONDS)]
        figures[ALL, RATIO] = seconds / base if seconds and base else None
    return tuple(_printed_cell(published, name, figures.get((group, name))) for group, name in columns)


def _printed_cell(published: PublishedFigures, name: str, value: float | None) -> Cell:
    if value is None:
        return NO_VALUE
    if name == TOTAL:
        return Cell(clock(value))
    if published.of is not None:
        return Cell(f"{100 * value / published.of:.1f}", f"{value:g} of {published.of}")
    return Cell(f"{value:.{2 if name == RATIO else published.digits}f}")
