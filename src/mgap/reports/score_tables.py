"""Tables of a report, from the scores of one run or of several side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mgap.benchmarks.statistics import Rate
from mgap.benchmarks.tally import Difference, PairedComparison
from mgap.pages.html_page import NO_VALUE, Cell, RowGroup, Table, TableRow
from mgap.reports.scores import Effort, Kind, Part, Scores
from mgap.reports.standings import BESIDE, main_figure

DEPARTED = (
    "Percent of the states that lie farther than tau from those of plain decoding, by the strength of the method, with 95% "
    "intervals from a bootstrap over pictures. \u2193: lower is better."
)
TIED = " Tied: answers with a token that was chosen among equal best scores, so that rounding decided."
MATCHED = {
    "length": "At equal length: the baseline's texts are cut after so many words that their mean length comes nearest to the "
    "method's; they stay whole where they are no longer. What a method gains by saying less is gone from these differences.",
    "recall": "At equal recall: the baseline's texts are cut after so many words that their recall comes nearest to the "
    "method's; they stay whole where they recall no more. What is left of a difference in hallucinations is the method's own.",
}
RELABELLED_F1 = "f1_repope"  # beside F1 on POPE's own labels
TITLES = {
    "f1": "F1",
    RELABELLED_F1: "F1 (RePOPE)",
    "yes_ratio": "Says yes",
    "chair": "CHAIR",
    "accuracy_plus": "Accuracy+",
    "fAcc": "fAcc",
    "qAcc": "qAcc",
}


def run_names(runs: Sequence[Scores]) -> list[str]:
    """Names that distinguish the runs: their models, with their folders if models repeat."""
    models = [scores.model for scores in runs]
    folders = [scores.run.folder.resolve() for scores in runs]
    short = [f"{model} ({folder.name})" for model, folder in zip(models, folders, strict=True)]
    for names in (models, short):
        if len(set(names)) == len(names):
            return names
    return [f"{model} ({folder})" for model, folder in zip(models, folders, strict=True)]


def column(name: str, kind: Kind | None = None) -> str:
    """A figure's name as a heading, with an arrow if lower is better."""
    title = title_of_figure(name)
    return f"{title} \u2193" if kind is not None and kind.better == "lower" else title


def title_of_figure(name: str) -> str:
    return TITLES.get(name) or name[:1].upper() + name[1:].replace("_", " ")


def cell(rate: Rate, kind: Kind, digits: int = 1) -> Cell:
    """A figure and its interval; a dash if nothing was counted."""
    if rate.of == 0:
        return NO_VALUE
    scale = 100 if kind.percent else 1
    value, low, high = (f"{scale * number:.{digits}f}" for number in (rate.value, rate.low, rate.high))
    return Cell(value, f"{low} to {high}")


def score_tables(runs: Sequence[Scores]) -> list[Table]:
    """Every figure of every method by group; groups with other figures get a table of their own."""
    tables: dict[tuple[str, ...], list[RowGroup]] = {}
    remarks: dict[tuple[str, ...], dict[str, str]] = {}
    kinds, has_ties = _kinds(runs), _has_ties(runs)
    for name, scores, group in groups_of_runs(runs):
        parts = {label: result.groups[group] for label, result in scores.results.items() if group in result.groups}
        figures = tuple(dict.fromkeys(figure for part in parts.values() for figure in part.rates))
        rows = {label: TableRow(label, _figures(part, kinds, figures, has_ties)) for label, part in parts.items()}
        tables.setdefault(figures, []).extend(_under_methods(group_heading(runs, name, group), rows, control_rows(scores)))
        remarks.setdefault(figures, {})[name] = scores.remark
    is_departure = all(scores.run.plan.get("departure") for scores in runs)
    return [
        Table(
            DEPARTED if is_departure else _caption(figures, kinds) + (TIED if has_ties else "") + _remarks(remarks[figures]),
            _columns(figures, kinds, has_ties),
            groups,
            notes=() if "accuracy" in figures else _dropped(runs),
            short=_short(
                figures, kinds, ("accuracy", "precision", "recall", "CHAIRs", "cover", "hal", "yes_ratio"), ("Tied", "Samples")
            ),
        )
        for figures, groups in tables.items()
    ]


def paired_tables(runs: Sequence[Scores]) -> list[Table]:
    """The differences of each method to the baseline on the same samples."""
    tables: dict[tuple[tuple[str, ...], tuple[str, ...]], list[RowGroup]] = {}  # by figures and further columns
    remarks: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, str]] = {}
    kinds = _kinds(runs)
    for name, scores, group in groups_of_runs(runs):
        parts = {label: result.groups[group] for label, result in scores.results.items() if group in result.groups}
        comparisons = {label: part.against for label, part in parts.items() if part.against is not None}
        figures = tuple(dict.fromkeys(name for comparison in comparisons.values() for name in comparison.differences))
        rows = {label: TableRow(label, _differences(c, kinds, figures)) for label, c in comparisons.items()}
        if rows:
            heading = group_heading(runs, name, group)
            against = f"{heading}, against {scores.baseline}" if heading else f"Against {scores.baseline}"
            has_pairs = any(c.pairs is not None for c in comparisons.values())
            key = figures, ("Pairs gained", "Pairs lost") if has_pairs else ()
            tables.setdefault(key, []).extend(_under_methods(against, rows, control_rows(scores)))
            remarks.setdefault(key, {})[name] = scores.remark
    caption = (
        "Differences in points, with 95% intervals from a paired bootstrap over {drawn}; noise: the interval holds 0. "
        "Gained: right only with the method; lost: right only without it. p: McNemar's exact test of gained against lost, "
        "not corrected for the number of rows."
    )
    return [
        Table(
            caption.format(drawn=_drawn(figures, kinds)) + _remarks(remarks[figures, pairs]),
            ("Method", *(column(name) for name in figures), "Gained", "Lost", "p", *pairs),
            groups,
            short=_short(figures, {}, (), ("Gained", "Lost", "p", *pairs)),
        )
        for (figures, pairs), groups in tables.items()
    ]


def _short(
    figures: Sequence[str], kinds: Mapping[str, Kind], bare: Sequence[str], counts: Sequence[str]
) -> Mapping[str, bool] | None:
    """The columns that a terminal has: the main figure and what it costs, with intervals, some figures bare, and counts."""
    main = main_figure(figures)
    if main is None:
        return None
    whole = {main, RELABELLED_F1, BESIDE.get(main)} - {*bare}
    shown = {name: name in whole for name in figures if name in whole or name in bare}
    return {**{column(name, kinds.get(name)): is_whole for name, is_whole in shown.items()}, **dict.fromkeys(counts, False)}


def control_rows(scores: Scores) -> list[str]:
    """The labels of the rows that methods are held against."""
    return [label for label, result in scores.results.items() if result.arm.control]


def counted_rows(scores: Scores) -> str:
    """How many methods have answers, and how many controls, in words."""
    controls = control_rows(scores)
    methods = sum(1 for label, result in scores.results.items() if result.groups and label not in controls)
    text = f"{methods} method{'s' * (methods != 1)}"
    return f"{text} and {len(controls)} control{'s' * (len(controls) != 1)}" if controls else text


def _under_methods(heading: str, rows: Mapping[str, TableRow], controls: Sequence[str]) -> list[RowGroup]:
    """The rows of methods, and under them those of controls as a group of their own."""
    methods = tuple(row for label, row in rows.items() if label not in controls)
    others = tuple(row for label, row in rows.items() if label in controls)
    groups = (RowGroup(heading, methods), RowGroup(f"{heading}: controls" if heading else "Controls", others))
    return [group for group in groups if group.rows]


def matched_tables(runs: Sequence[Scores], by: str = "length") -> list[Table]:
    """Each method beside the baseline's texts, cut to the method's length or recall."""
    tables: dict[tuple[str, ...], list[RowGroup]] = {}
    remarks: dict[tuple[str, ...], dict[str, str]] = {}
    kinds = _kinds(runs)
    for name, scores, group in groups_of_runs(runs):
        for label, result in scores.results.items():
            matched = result.matched if by == "length" else result.matched_recall
            if matched is None or group not in matched.groups:
                continue
            figures = tuple(result.groups[group].rates)
            is_whole = matched.words is None
            cut = f"{scores.baseline}, whole" if is_whole else f"{scores.baseline}, cut after {matched.words} words"
            against = matched.against[group]
            rows = (
                TableRow(label, _figures(result.groups[group], kinds, figures)[: len(figures)]),
                TableRow(cut, _figures(matched.groups[group], kinds, figures)[: len(figures)]),
                TableRow("difference", _differences(against, kinds, figures)[: len(figures)]),
            )
            heading = f"{group_heading(runs, name, group)}: {label}" if group_heading(runs, name, group) else label
            tables.setdefault(figures, []).append(RowGroup(heading, rows))
            remarks.setdefault(figures, {})[name] = scores.remark
    return [
        Table(
            MATCHED[by] + _remarks(remarks[figures]),
            ("", *(column(name, kinds[name]) for name in figures)),
            groups,
            short=_short(figures, kinds, ("recall", "cover", "length", "words"), ()),
        )
        for figures, groups in tables.items()
    ]


def effort_table(runs: Sequence[Scores]) -> Table | None:
    """How long the answers took; None if no record has times."""
    groups = []
    for name, scores in zip(run_names(runs), runs, strict=True):
        if scores.run.plan.get("departure"):
            continue  # such a run has no answers
        efforts = {label: r.effort for label, r in scores.results.items() if r.effort is not None and r.effort.total > 0}
        base = efforts.get(scores.baseline)
        rows = tuple(
            TableRow(
                label,
                (
                    Cell(clock(effort.total)),
                    seconds_cell(effort.seconds),
                    Cell(f"{effort.seconds.value / base.seconds.value:.2f}") if base else NO_VALUE,
                    Cell(f"{effort.tokens:.1f}"),
                    Cell(f"{effort.tokens / effort.seconds.value:.1f}"),
                ),
            )
            for label, effort in efforts.items()
        )
        if rows:
            groups.append(RowGroup(name if len(runs) > 1 else "", rows))
    if not groups:
        return None
    columns = (
        "Method",
        "Total time",
        "Seconds a sample \u2193",
        "Times the baseline \u2193",
        "Tokens an answer",
        "Tokens a second",
    )
    caption = (
        "Time of the scored answers, fitting a prior not included; an answer's time is its share of the batch that it was in."
    )
    if not all(scores.run.plan.get("warm_up") for scores in runs):
        caption += (
            " Methods ran one after the other, warming up and whatever else the machine did included: to compare methods, run"
            " with warm_up on a machine that does nothing else."
        )
    return Table(caption, columns, groups)


def coverage_table(runs: Sequence[Scores]) -> Table:
    groups, notes = [], []
    for name, scores in zip(run_names(runs), runs, strict=True):
        rows, asked = [], {method.label for method in scores.run.methods}
        for label, result in scores.results.items():
            if label not in asked:
                continue  # no model was to answer it
            coverage = result.coverage
            counts = (coverage.answered, coverage.missing, coverage.failed, coverage.cut_off)
            rows.append(TableRow(label, tuple(Cell(str(count)) for count in counts)))
            if coverage.error:
                notes.append(f"{label}, first failure: {coverage.error}")
        groups.append(RowGroup(name if len(runs) > 1 else "", tuple(rows)))
    caption = (
        "Samples by method. Only those that every method answered are scored. Cut off: answers that reached the longest length."
    )
    return Table(caption, ("Method", "Answered", "Missing", "Failed", "Cut off"), groups, notes=tuple(notes))


def clock(seconds: float) -> str:
    """A time as the paper prints it: 23:57, 1:46:54; below a minute, in seconds."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds_cell(rate: Rate) -> Cell:
    return Cell(f"{rate.value:.3g}", f"{rate.low:.3g} to {rate.high:.3g}") if rate.of and rate.value > 0 else NO_VALUE


def efforts(scores: Scores) -> dict[str, Effort]:
    return {label: result.effort for label, result in scores.results.items() if result.effort is not None}


def _kinds(runs: Iterable[Scores]) -> dict[str, Kind]:
    return {name: kind for scores in runs for name, kind in scores.figures.items()}


def groups_of_runs(runs: Sequence[Scores]) -> list[tuple[str, Scores, str]]:
    """(name of the run, run, group), sorted by group and then by run."""
    triples = [
        (name, scores, group)
        for name, scores in zip(run_names(runs), runs, strict=True)
        for group in scores.results[scores.baseline].groups
    ]
    order = list(dict.fromkeys(group for _, _, group in triples))
    return sorted(triples, key=lambda triple: order.index(triple[2]))


def group_heading(runs: Sequence[Scores], name: str, group: str) -> str:
    title = group[:1].upper() + group[1:].replace("_", " ")
    if len(runs) > 1:
        return f"{title}, {name}"
    return title if len(runs[0].results[runs[0].baseline].groups) > 1 else ""


def _has_ties(runs: Iterable[Scores]) -> bool:
    """Whether any scored answer has a tie; in float32 hardly any has, and the tables do without the column."""
    parts = (part for scores in runs for result in scores.results.values() for part in result.groups.values())
    return any(part.ties is not None and part.ties.answers for part in parts)


def _columns(figures: Sequence[str], kinds: dict[str, Kind], has_ties: bool) -> tuple[str, ...]:
    counts = (*(("Unparsed",) if "accuracy" in figures else ()), *(("Tied",) if has_ties else ()), "Samples")
    return ("Method", *(column(name, kinds[name]) for name in figures), *counts)


def _figures(part: Part, kinds: dict[str, Kind], figures: Sequence[str], has_ties: bool = False) -> tuple[Cell, ...]:
    unparsed = (Cell(str(part.unparsed)),) if "accuracy" in figures else ()
    tied = (_tied(part),) if has_ties else ()
    rates = (cell(part.rates[name], kinds[name]) if name in part.rates else NO_VALUE for name in figures)
    return (*rates, *unparsed, *tied, Cell(str(part.samples)))


def _tied(part: Part) -> Cell:
    if part.ties is None:
        return NO_VALUE
    return Cell(str(part.ties.answers), "" if part.ties.counted == part.samples else f"of {part.ties.counted}")


def _differences(comparison: PairedComparison, kinds: dict[str, Kind], figures: Sequence[str]) -> tuple[Cell, ...]:
    found = comparison.differences
    changes = tuple(difference_cell(found[name], kinds[name]) if name in found else NO_VALUE for name in figures)
    p = "< 0.001" if comparison.p < 0.001 else f"{comparison.p:.3f}"
    pairs = (Cell(str(count)) for count in comparison.pairs or ())
    return (*changes, Cell(str(comparison.gained)), Cell(str(comparison.lost)), Cell(p), *pairs)


def difference_cell(difference: Difference, kind: Kind) -> Cell:
    if difference.low == difference.high == 0:
        return Cell("0.0", "same", "unclear")
    scale = 100 if kind.percent else 1
    value, low, high = (_signed(scale * number) for number in (difference.value, difference.low, difference.high))
    if difference.is_noise:
        return Cell(value, f"{low} to {high}, noise", "unclear")
    if not kind.better:
        return Cell(value, f"{low} to {high}")
    return Cell(value, f"{low} to {high}", "right" if (difference.value > 0) == (kind.better == "higher") else "wrong")


def _signed(number: float) -> str:
    return "0.0" if abs(number) < 0.05 else f"{number:+.1f}"


def _dropped(runs: Sequence[Scores]) -> tuple[str, ...]:
    """How many captions of each method lost an unfinished last sentence."""
    return tuple(
        f"{label if len(runs) == 1 else f'{name}, {label}'}: {result.dropped.shortened} captions lost an unfinished last "
        f"sentence; {result.dropped.without_end} without the end of any sentence were kept whole"
        for name, scores in zip(run_names(runs), runs, strict=True)
        for label, result in scores.results.items()
        if result.dropped is not None
    )


def _caption(figures: Sequence[str], kinds: dict[str, Kind]) -> str:
    arrows = " \u2193: lower is better." if any(kinds[name].better == "lower" for name in figures) else ""
    points = [column(name).lower() for name in figures if kinds[name].full]
    others = [f"the {name} in points" for name in points]
    others += ["the mean length"] * any(not (kinds[name].percent or kinds[name].full) for name in figures)
    unit = "Points" if len(points) == len(figures) else f"Percent{', but for ' if others else ''}{' and '.join(others)}"
    return f"{unit}; with each figure its 95% interval from a bootstrap over {_drawn(figures, kinds)}.{arrows}"


def _drawn(figures: Sequence[str], kinds: dict[str, Kind]) -> str:
    """What the bootstraps of these figures draw."""
    return " and ".join(dict.fromkeys(kinds[name].over for name in figures))


def _remarks(by_run: Mapping[str, str]) -> str:
    """What the scorers of these runs say about all of their figures; named after the runs if they differ."""
    told = {name: remark for name, remark in by_run.items() if remark}
    if len(set(told.values())) > 1:
        return "".join(f" {name}: {remark}" for name, remark in told.items())
    return "".join(f" {remark}" for remark in dict.fromkeys(told.values()))
