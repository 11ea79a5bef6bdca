"""The runs page: tables, figures, facts and answers of any run below a folder; every answer can be opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from PIL import Image

from mgap.errors import MgapError, RunError
from mgap.inspector.answer_pairs import ALL, FILTERS, Pair, choose, groups_of, methods_of, pairs
from mgap.inspector.archive import Archive, ScoredRun, reading
from mgap.inspector.cases import AskCase, OpenedCase
from mgap.inspector.opening import card, case_of, model_refusal
from mgap.inspector.theme import render
from mgap.io.images import open_image
from mgap.pages.html_page import PagePicture, render_part
from mgap.pages.plots import SYMBOLS
from mgap.pages.print_figures import FIGURES
from mgap.reports.report import facts_of, sections, title_of
from mgap.reports.report_plots import draw
from mgap.reports.score_tables import counted_rows
from mgap.reports.scores import Scores
from mgap.reports.verdict import verdicts

PAGE = 12  # cards per page
PRINTS = 12  # print figures shown
WIDTH = 1200  # pixels, at most
EVERY_GROUP = ("All groups", "")
MAKE_ONE = "mgap run pope --model pocket/llava --method vanilla --method mgap"
CLICKS = Path(__file__).with_name("static") / "records.js"
WARNING_SECONDS = 10
_page = partial(render, "runs.html.j2")


class ShownRun(NamedTuple):
    """The outputs for a chosen run: the new value or state of each part of the page."""

    heading: str
    tables: str
    figures: str
    facts: str
    method: Any
    group: Any
    effect: Any
    words: Any
    filters: Any  # hidden if the run has no answers
    parts: Any  # hidden if there is nothing to show


def build_runs(root: Path, models: Sequence[str]) -> OpenedCase:
    """Build the page in the current tab; `models` are those that can open a case."""
    archive, tab = Archive(root), gr.context.Context.block
    with gr.Row(equal_height=False, elem_classes="records-choice"):
        chosen = gr.Dropdown(
            run_choices(archive), value=None, label="Run", info=f"Below {root}, newest first", scale=5, min_width=280
        )
        refresh = gr.Button("Refresh the list", scale=0, min_width=170, elem_classes="records-button")
    heading = gr.HTML("", apply_default_css=False, js_on_load=None, min_height=72)  # shows the progress
    with gr.Column(visible=False) as parts, gr.Tabs():
        with gr.Tab("Results"):
            tables = _html()
        with gr.Tab("Answers"):
            with gr.Column(elem_classes="records-filters") as filters:
                with gr.Row():
                    method = gr.Dropdown([], label="Method", min_width=160)
                    group = gr.Dropdown([EVERY_GROUP], value="", label="Group", min_width=160)
                    words = gr.Textbox(label="Search", placeholder="in questions and answers", max_lines=1, min_width=160)
                effect = gr.Radio([(text, name) for name, text in FILTERS.items()], value=ALL, label="Answers")
            cards = gr.HTML("", js_on_load=CLICKS.read_text(encoding="utf-8"), apply_default_css=False)
            with gr.Row(elem_classes="records-pager"):
                back = gr.Button("Previous", interactive=False, scale=0, min_width=120, elem_classes="records-button")
                on = gr.Button("Next", interactive=False, scale=0, min_width=120, elem_classes="records-button")
        with gr.Tab("Figures"):
            figures = _html()
        with gr.Tab("Facts"):
            facts = _html()
    page, shown, case = gr.State(0), gr.State(None), gr.State(None)
    filled = [heading, tables, figures, facts, method, group, effect, words, filters, parts]
    query = [chosen, method, effect, group, words]
    listed = [cards, page, back, on, effect]
    silent: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}

    def show(name: str | None, progress: gr.Progress = gr.Progress()) -> tuple[Any, ...]:  # noqa: B008 - as Gradio requires
        return (*show_run(archive, name, progress), name)

    def show_another(name: str | None, before: str | None, progress: gr.Progress = gr.Progress()) -> Any:  # noqa: B008
        return gr.skip() if name is not None and name == before else show(name, progress)

    def list_page(by: int | None, *given: Any) -> AnswerPage:
        *filters, number = given
        return list_answers(archive, models, *filters, page=0 if by is None else number + by)

    def refresh_choices(name: str | None) -> Any:
        found = run_choices(archive)
        names = [value for _, value in found]
        return gr.update(choices=found, value=name if name in names else next(iter(names), None))

    def open_case(name: Any, label: Any, event: gr.EventData) -> AskCase | None:
        return case_or_warning(lambda: case_at(archive, models, name, label, getattr(event, "id", None)))

    fill: dict[str, Any] = {"outputs": [*filled, shown], "show_progress_on": heading, "api_visibility": "private"}
    relist: dict[str, Any] = {"fn": partial(list_page, None), "inputs": [*query, page], "outputs": listed, **silent}
    chosen.input(show, chosen, **fill).then(**relist)
    refresh.click(refresh_choices, chosen, chosen, **silent).then(show, chosen, **fill).then(**relist)
    if isinstance(tab, gr.Tab):  # returning to the page keeps its state
        returned = tab.select(refresh_choices, chosen, chosen, **silent).then(show_another, [chosen, shown], **fill)
        returned.then(partial(list_page, 0), [*query, page], listed, **silent)
    for part in (method.input, group.input, effect.input, words.change):
        part(**relist, trigger_mode="always_last")
    back.click(partial(list_page, -1), [*query, page], listed, **silent)
    on.click(partial(list_page, 1), [*query, page], listed, **silent)
    return OpenedCase(case, cards.select(open_case, [chosen, method], case, **silent))


def _html() -> gr.HTML:
    return gr.HTML("", apply_default_css=False, js_on_load=None)


def run_choices(archive: Archive) -> list[tuple[str, str]]:
    """Choices for a dropdown: label and name."""
    return [(f"{entry.display_name}  ({entry.about}, {entry.created[:16]})", entry.name) for entry in archive.entries()]


def show_run(archive: Archive, name: str | None, progress: Any = None) -> ShownRun:
    """Everything of a run but its answers; a sentence if it cannot be read."""
    report = progress or (lambda *_, **__: None)
    if name is None:
        return _sentence_only(f"No run lies below {archive.root} yet. Make one, then refresh the list:", MAKE_ONE)
    try:
        report(0.1, desc="Scoring the answers")
        opened = archive.open(name)
        with reading(opened.run.folder):
            report(0.6, desc="Filling the tables")
            heading, tables = heading_of(opened), tables_of(opened.scores)
            facts = _page(part="facts", facts=facts_of(opened.scores), draw=render_part)
            report(0.8, desc="Drawing the figures")
            figures = figures_of(opened)
    except MgapError as error:
        return _sentence_only(f"{error}.")
    labels, groups = (methods_of(opened.scores), groups_of(opened.scores)) if opened.has_answers else ([], [])
    return ShownRun(
        heading,
        tables,
        figures,
        facts,
        gr.update(choices=labels, value=next(iter(labels), None)),
        gr.update(choices=[EVERY_GROUP, *((name, name) for name in groups)], value=""),
        ALL,
        "",
        gr.update(visible=opened.has_answers),
        gr.update(visible=True),
    )


def _sentence_only(text: str, command: str = "") -> ShownRun:
    sentence = _page(part="sentence", text=text, command=command)
    empty, hidden = gr.update(choices=[], value=None), gr.update(visible=False)
    return ShownRun(sentence, "", "", "", empty, gr.update(choices=[EVERY_GROUP], value=""), ALL, "", hidden, hidden)


def heading_of(opened: ScoredRun) -> str:
    scores = opened.scores
    lead = f"{scores.model}, {scores.scored:,} of {len(opened.run.samples):,} samples under {counted_rows(scores)}"
    return _page(part="heading", title=title_of([scores]), lead=f"{lead}.", warnings=scores.warnings)


def tables_of(scores: Scores) -> str:
    """The verdict, and the tables of the report."""
    return _page(part="tables", verdicts=verdicts([scores]), sections=sections([scores]), draw=render_part)


def figures_of(opened: ScoredRun) -> str:
    """Plots of the scores, and the print figures in the run's folder with their captions."""
    files = sorted(path for path in (opened.run.folder / FIGURES).glob("*.png") if path.is_file() and not path.is_symlink())
    prints = [_print(path) for path in files[:PRINTS]]
    left_out = len(files) - len(prints)
    return _page(
        part="figures", drawn=draw([opened.scores]), symbols=SYMBOLS, prints=prints, left_out=left_out, draw=render_part
    )


def _print(path: Path) -> PagePicture:
    image = open_image(path)
    with Image.open(path) as file:
        caption = str(file.info.get("Description") or path.stem)
    image.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
    return PagePicture.of(image, caption)


class AnswerPage(NamedTuple):
    """A page of cards, its number, the states of both pager buttons, and the filters with their counts."""

    cards: str
    page: int
    back: Any
    on: Any
    effect: Any


def list_answers(
    archive: Archive, models: Sequence[str], name: Any, label: Any, effect: Any, group: Any, words: Any, *, page: int = 0
) -> AnswerPage:
    """A page of one method's answers that pass all filters; a sentence if it cannot be listed."""
    closed, unchanged = gr.update(visible=False), gr.update()
    try:
        if not name:
            return AnswerPage("", 0, closed, closed, unchanged)
        opened = archive.open(name)
        answered = pairs(opened.scores, label)
        found = choose(answered, effect, group, words)
    except MgapError as error:
        return AnswerPage(_page(part="sentence", text=f"{error}.", command=""), 0, closed, closed, unchanged)
    counts = {one: len(choose(answered, one, group, words)) for one in FILTERS}
    pages = max(1, -(-len(found) // PAGE))
    page = min(max(page, 0), pages - 1)
    html = _page(
        part="answers",
        refusal=model_refusal(opened, models),
        count=_count(found, len(answered), page),
        found=[card(opened, pair, models) for pair in found[page * PAGE : (page + 1) * PAGE]],
        before=opened.scores.baseline,
        after=label,
        run=opened.name,
    )
    filters = [(f"{text} ({counts[one]:,})", one) for one, text in FILTERS.items()]
    several = pages > 1
    back, on = gr.update(visible=several, interactive=page > 0), gr.update(visible=several, interactive=page < pages - 1)
    return AnswerPage(html, page, back, on, gr.update(choices=filters))


def _count(found: Sequence[Pair], of: int, page: int) -> str:
    if not found:
        return f"None of {of:,} answers is of this kind."
    last = min((page + 1) * PAGE, len(found))
    return f"{page * PAGE + 1:,} to {last:,} of {len(found):,} answers{f', out of {of:,}' if len(found) < of else ''}."


def case_at(archive: Archive, models: Sequence[str], name: object, label: object, sample: object) -> AskCase:
    """The case of a clicked card. What the browser sends is checked."""
    opened = archive.open(name)
    pair = next((pair for pair in pairs(opened.scores, label) if pair.sample.id == sample), None)
    if pair is None:
        raise RunError(f"{str(sample)[:80]!r} is no answer of this run: choose a card from the list")
    return case_of(opened, str(label), pair, models)


def case_or_warning(case: Callable[[], AskCase]) -> AskCase | None:
    """The case, or a warning on the page and None, which replaces the last case."""
    try:
        return case()
    except MgapError as error:
        gr.Warning(f"{error}.", duration=WARNING_SECONDS)
        return None
