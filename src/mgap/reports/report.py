"""The report of one run or of several side by side: a verdict and tables as Markdown, LaTeX and JSON, and an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from textwrap import fill

from mgap.io.strict_json import strict_json
from mgap.pages.html_page import Table, render_page
from mgap.pages.plots import SYMBOLS
from mgap.pages.print_figures import FIGURES, Print
from mgap.pages.table_formats import as_json, escape_markdown, latex, markdown
from mgap.reports.control_tables import left_tables, turned_tables
from mgap.reports.departure_tables import is_by_step, step_tables
from mgap.reports.diagnosis_sections import HEADINGS, analysis_tables
from mgap.reports.examples import Changes, changes, with_pictures
from mgap.reports.method_words import in_words, method_in_words
from mgap.reports.published_comparison import beside_tables
from mgap.reports.relabelled import relabelled_tables
from mgap.reports.report_plots import Plots, draw
from mgap.reports.score_tables import (
    counted_rows,
    coverage_table,
    effort_table,
    matched_tables,
    paired_tables,
    run_names,
    score_tables,
)
from mgap.reports.scores import Scores
from mgap.reports.verdict import RunVerdict, verdicts
from mgap.run.records import Run, RunMethod
from mgap.types import Decoding

FILES = ("report.md", "report.tex", "report.json", "report.html")
PLAIN = asdict(Decoding())
UNSHOWN = ("name", "is_partial")  # of the model
Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class Section:
    """A section: tables that answer one question."""

    name: str  # unique in the report
    heading: str
    tables: list[Table]


def report_files(runs: Sequence[Scores], *, beside: str | None = None, prints: Sequence[Print] = ()) -> dict[str, str]:
    """The texts of the files by name; `beside` names the published backbone, default: that of the model's family.

    `prints` are shown too; the Markdown file links to them in the folder `figures` beside it.
    """
    parts = sections(runs, beside)
    warnings = [f"{name}: {text}" if len(runs) > 1 else text for name, s in _named(runs) for text in s.warnings]
    told = verdicts(runs)
    texts = {
        "report.md": _markdown(runs, told, parts, warnings, prints),
        "report.tex": _latex(runs, told, parts),
        "report.json": strict_json(
            {
                "verdict": [asdict(verdict) for verdict in told],
                "runs": [scores.to_json() for scores in runs],
                "tables": {part.name: [as_json(table) for table in part.tables] for part in parts},
            },
            indent=1,
            ensure_ascii=False,
        )
        + "\n",
        "report.html": _page(runs, told, parts, warnings, prints),
    }
    return {name: texts[name] for name in FILES}


def sections(runs: Sequence[Scores], beside: str | None = None) -> list[Section]:
    """The sections that have tables, in order."""
    effort = effort_table(runs)
    every_section = [
        Section("results", "Results", [*score_tables([s for s in runs if not is_by_step(s)]), *step_tables(runs)]),
        Section("published", "Beside the published figures", beside_tables(runs, beside)),
        Section("controls", "Beside controls", left_tables(runs)),
        Section("paired", "What each method changes", [*paired_tables(runs), *turned_tables(runs)]),
        Section("relabelled", "On RePOPE's labels", relabelled_tables(runs)),
        *(Section(name, heading, _tables_of_analysis(runs, name)) for name, heading in HEADINGS.items()),
        Section("matched", "At equal length", matched_tables(runs)),
        Section("matched-recall", "At equal recall", matched_tables(runs, "recall")),
        Section("time", "Time", [effort] if effort else []),
        Section("answers", "Answers", [coverage_table(runs)]),
    ]
    return [section for section in every_section if section.tables]


def _tables_of_analysis(runs: Sequence[Scores], name: str) -> list[Table]:
    """The tables of one analysis, from all runs that have it."""
    tables = []
    for run, scores in _named(runs):
        own = analysis_tables(scores.run.folder, name)
        tables += [replace(table, caption=f"{run}. {table.caption}") for table in own] if len(runs) > 1 else own
    return tables


def title_of(runs: Sequence[Scores]) -> str:
    titles = list(dict.fromkeys(scores.title for scores in runs))
    return " and ".join(titles)


def facts_of(scores: Scores) -> Facts:
    """The facts needed to repeat one run's scores."""
    plan = scores.run.plan
    groups = {name: part.samples for name, part in scores.results[scores.baseline].groups.items()}
    if is_by_step(scores):
        groups = {"answers, state by state": scores.scored}
    model = {k: v for k, v in plan.get("model", {}).items() if k not in UNSHOWN and isinstance(v, str | int | float)}
    decoding = {k: v for k, v in plan.get("decoding", {}).items() if k == "max_new_tokens" or v != PLAIN.get(k)}
    facts = [
        ("Benchmark", f"{plan['benchmark']['name']}: {', '.join(f'{count} {name}' for name, count in groups.items())}"),
        ("Difficulty", in_words(plan.get("difficulty") or {})),
        ("Model", f"{scores.model} ({in_words(model)})" if model else scores.model),
        ("Answers", f"{scores.scored} of {len(scores.run.samples)} samples were answered by all methods, and are scored"),
        ("Decoding", f"{'sampled' if decoding.get('sample') else 'not sampled'}, {in_words(decoding)}"),
        ("Scored with", in_words(scores.scorer)),
        ("RePOPE", str(scores.relabelled or "")),
        ("Baseline", scores.baseline),
        *((f"Method {label}", _method(scores.run, r.arm)) for label, r in scores.results.items()),
        ("Files read", in_words(plan["benchmark"].get("sources") or {})),
        ("Mended", " ".join(plan["benchmark"].get("notes") or ())),
        ("Versions", in_words(plan.get("versions", {}))),
        ("Begun", str(plan.get("created", ""))),
        ("Command", str(plan.get("command", ""))),
        ("Folder", str(scores.run.folder)),
    ]
    return [(term, text) for term, text in facts if text]


def _method(run: Run, row: RunMethod) -> str:
    text = method_in_words(run, row)
    return f"{text}; questions about one picture share its keys and values" if row.prefill == "shared" else text


def _named(runs: Sequence[Scores]) -> Iterator[tuple[str, Scores]]:
    yield from zip(run_names(runs), runs, strict=True)


def _markdown(
    runs: Sequence[Scores],
    told: Sequence[RunVerdict],
    parts: Sequence[Section],
    warnings: Sequence[str],
    prints: Sequence[Print],
) -> str:
    lines = [f"# {title_of(runs)}", ""]
    for text in warnings:
        lines += [f"**Note:** {text}.", ""]
    lines += ["## Verdict", ""] if told else []
    for verdict in told:
        lines += [f"### {verdict.run}", ""] if verdict.run else []
        lines += [*verdict_lines(verdict), ""]
    for part in parts:
        lines += [f"## {part.heading}", "", *(markdown(table) for table in part.tables)]
    lines += ["## Figures", ""] if prints else []
    for figure in prints:
        lines += [f"![{figure.name}]({FIGURES}/{figure.name}.png)", "", figure.caption, ""]
    lines += ["## How this was made", ""]
    for name, scores in _named(runs):
        lines += [f"### {name}", ""] if len(runs) > 1 else []
        lines += [f"- {term}: {f'`{text}`' if term == 'Command' else text}" for term, text in facts_of(scores)] + [""]
    return "\n".join(lines)


def _latex(runs: Sequence[Scores], told: Sequence[RunVerdict], parts: Sequence[Section]) -> str:
    """The tables; the verdict stands above them as comments."""
    head = [
        f"% {' '.join(title_of(runs).split())}; needs \\usepackage{{booktabs}}, and \\input{{report}} where tables may float",
        *(f"% {' '.join(text.split())}" for verdict in told for text in _lines(verdict)),
        "",
    ]
    tables = []
    for part in parts:
        for number, table in enumerate(part.tables):
            tables.append(latex(table, f"tab:{part.name}{f'-{number + 1}' if number else ''}"))
    return "\n".join([*head, *tables])


def verdict_lines(verdict: RunVerdict, width: int = 0) -> list[str]:
    """A verdict as lists in Markdown: its sentences, then the rows with their settings; `width`: of the longest line."""
    pairs = ([*verdict.sentences], [*verdict.rows])
    said, rows = (
        [(f"- **{escape_markdown(about)}**: " if about else "- ") + escape_markdown(text) for about, text in of] for of in pairs
    )
    lines = [*said, "", "The rows:", "", *rows]
    return [fill(line, width, subsequent_indent="  ") for line in lines] if width else lines


def _lines(verdict: RunVerdict) -> list[str]:
    """A verdict as plain lines, the name of its run first where there are several."""
    return [verdict.run] * bool(verdict.run) + [f"{about}: {text}" if about else text for about, text in verdict.sentences]


def _page(
    runs: Sequence[Scores],
    told: Sequence[RunVerdict],
    parts: Sequence[Section],
    warnings: Sequence[str],
    prints: Sequence[Print],
) -> str:
    plot_groups: list[Plots] = draw(runs)
    changed: list[tuple[str, str, list[Changes]]] = [
        (name if len(runs) > 1 else "", scores.baseline, methods)
        for name, scores in _named(runs)
        if (methods := with_pictures(scores, changes(scores)))
    ]
    return render_page(
        "report.html.j2",
        title=title_of(runs),
        lead=[_lead(name, scores) for name, scores in _named(runs)],
        warnings=warnings,
        verdicts=told,
        sections=parts,
        plot_groups=plot_groups,
        symbols=SYMBOLS,
        changed=changed,
        pictures=[figure.picture() for figure in prints],
        facts=[(name if len(runs) > 1 else "", facts_of(scores)) for name, scores in _named(runs)],
    )


def _lead(name: str, scores: Scores) -> str:
    plan = scores.run.plan
    day = str(plan.get("created", ""))[:10]
    rows = f"{counted_rows(scores)}{f', {day}' if day else ''}"
    return f"{plan['benchmark']['name']} on {name}: {scores.scored} samples under {rows}."
