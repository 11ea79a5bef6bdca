"""Our figures beside printed ones, in the shape of the printed table."""

from __future__ import annotations

from collections.abc import Sequence

from mgap.pages.html_page import NO_VALUE, Cell, RowGroup, Table, TableRow
from mgap.reports.published_figures import ALL, PublishedBackbone, PublishedFigures
from mgap.reports.score_tables import cell, clock, column, efforts, run_names, seconds_cell
from mgap.reports.scores import Scores

TOTAL, SECONDS, RATIO = "total", "seconds", "ratio"  # columns that are made of times, not of a scorer's figures
_TITLES = {TOTAL: "Total time", SECONDS: "Seconds a sample \u2193", RATIO: "Times the baseline \u2193"}
MARK = "\u2020"
OTHER = "other models and other pictures give other figures: compare directions, not values"


def published_of(scores: Scores) -> PublishedFigures | None:
    data = (scores.run.plan.get("experiment") or {}).get("published")
    return PublishedFigures.of_json(data) if data else None


def backbone_of(scores: Scores, name: str | None = None) -> PublishedBackbone | None:
    """The printed backbone of this name, else of the model's family; None where the run's experiment has none."""
    published = published_of(scores)
    return None if published is None else published.beside(scores.run.plan.get("model", {}).get("family"), name)


def printed_values(scores: Scores, name: str | None = None) -> dict[tuple[str, str, str], float]:
    """Printed percentages by method, group and figure, for those that the run has too."""
    published, backbone, found = published_of(scores), backbone_of(scores, name), dict[tuple[str, str, str], float]()
    if published is None or backbone is None:
        return found
    for label in [label for label in scores.results if label in backbone.rows]:
        groups, printed = scores.results[label].groups, backbone.rows[label].figures
        for group, part in groups.items():
            values = printed.get(group, printed.get(ALL, ()) if len(groups) == 1 else ())
            for figure, value in zip(published.columns, values, strict=False):  # no values: none are printed
                if value is not None and figure in part.rates:
                    found[label, group, figure] = value if published.of is None else 100 * value / published.of
    return found


def beside_tables(runs: Sequence[Scores], name: str | None = None) -> list[Table]:
    """One for every printed table that the runs are experiments of; `name`: of the backbone, default: the family's."""
    found: dict[str, tuple[PublishedFigures, list[tuple[str, Scores, PublishedBackbone]]]] = {}
    for run, scores in zip(run_names(runs), runs, strict=True):
        published = published_of(scores)
        backbone = backbone_of(scores, name)
        if published and backbone:
            found.setdefault(published.table, (published, []))[1].append((run, scores, backbone))
    return [_table(published, of) for published, of in found.values()]


def _table(published: PublishedFigures, runs: Sequence[tuple[str, Scores, PublishedBackbone]]) -> Table:
    backbones = list({backbone.name: backbone for _, _, backbone in runs}.values())
    places = [(group, name) for group in _groups(backbones) for name in _columns(published)]
    labels = dict.fromkeys([label for b in backbones for label in b.rows] + [label for _, s, _ in runs for label in s.results])
    groups, notes = [], []
    for label in labels:
        rows = [
            TableRow(f"{run}, measured", _measured(published, s, label, places)) for run, s, _ in runs if label in s.results
        ]
        for backbone in backbones:
            if label in backbone.rows:
                note = backbone.rows[label].note
                notes += [f"{MARK} {backbone.name}, {label}: {note}"] if note else []
                mark = f" {MARK}" if note else ""
                rows.append(TableRow(f"{backbone.name}, published{mark}", _printed(published, backbone, label, places)))
        groups.append(RowGroup(label, tuple(rows)))
    names = " and ".join(f"{run} beside {backbone.name}" for run, _, backbone in runs)
    kinds = {name: kind for _, scores, _ in runs for name, kind in scores.figures.items()}
    titles = tuple(_TITLES.get(name) or column(name, kinds.get(name)) for _, name in places)
    spans = (
        tuple((group[:1].upper() + group[1:], len(_columns(published))) for group in _groups(backbones))
        if _groups(backbones) != [ALL]
        else ()
    )
    caption = f"{published.table} of the paper: {names}. {published.note}".strip()
    if any(run != backbone.name for run, _, backbone in runs):
        caption += f" {OTHER.capitalize()}."
    return Table(caption, ("", *titles), groups, spans, tuple(notes))


def _groups(backbones: Sequence[PublishedBackbone]) -> list[str]:
    return list(dict.fromkeys(group for b in backbones for row in b.rows.values() for group in row.figures))


def _columns(published: PublishedFigures) -> tuple[str, ...]:
    return (*published.columns, RATIO) if SECONDS in published.columns else published.columns


def _measured(published: PublishedFigures, scores: Scores, label: str, places: Sequence[tuple[str, str]]) -> tuple[Cell, ...]:
    if not scores.results[label].groups:
        return (NO_VALUE,) * len(places)
    return tuple(_figure(published, scores, label, group, name) for group, name in places)


def _figure(published: PublishedFigures, scores: Scores, label: str, group: str, name: str) -> Cell:
    result, effort = scores.results[label], efforts(scores)
    if name in (TOTAL, SECONDS, RATIO):
        mine, base = effort[label], effort[scores.baseline]
        if not mine.total or not base.total:
            return NO_VALUE
        ratio = f"{mine.seconds.value / base.seconds.value:.2f}"
        return {TOTAL: Cell(clock(mine.total)), SECONDS: seconds_cell(mine.seconds), RATIO: Cell(ratio)}[name]
    fitting = [part for g, part in result.groups.items() if name in part.rates and group in (ALL, g)]
    if len(fitting) != 1:
        return NO_VALUE
    rate, kind = fitting[0].rates[name], scores.figures[name]
    if published.of is not None and rate.of:
        return Cell(cell(rate, kind).text, f"{round(rate.value * rate.of)} of {rate.of}")
    return Cell(cell(rate, kind, published.digits).text, cell(rate, kind).small)


def _printed(
    published: PublishedFigures, backbone: PublishedBackbone, label: str, places: Sequence[tuple[str, str]]
) -> tuple[Cell, ...]:
    figures = {
        (group, name): value
        for group, values in backbone.rows[label].figures.items()
        for name, value in zip(published.columns, values, strict=True)
    }
    first = next(iter(backbone.rows.values())).figures.get(ALL, ())
    if SECONDS in published.columns:
        here = figures[ALL, SECONDS]
        base = first[published.columns.index(SECONDS)]
        figures[ALL, RATIO] = here / base if here and base else None
    return tuple(_printed_cell(published, name, figures.get((group, name))) for group, name in places)


def _printed_cell(published: PublishedFigures, name: str, value: float | None) -> Cell:
    if value is None:
        return NO_VALUE
    if name == TOTAL:
        return Cell(clock(value))
    if published.of is not None:
        return Cell(f"{100 * value / published.of:.1f}", f"{value:g} of {published.of}")
    return Cell(f"{value:.{2 if name == RATIO else published.digits}f}")
