"""The page of runs: tables, figures and facts of any run below a folder, and its answers, each of which can be opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from PIL import Image

from mgap.errors import MgapError, RunError
from mgap.inspector.answer_pairs import ALL, FILTERS, Pair, choose, groups_of, methods_of, pairs
from mgap.inspector.archive import Archive, Opened, reading
from mgap.inspector.cases import AskCase, OpenedCase
from mgap.inspector.opening import card, case_of, model_refusal
from mgap.inspector.theme import render
from mgap.io.images import open_image
from mgap.pages.html_page import PagePicture, render_part
from mgap.pages.plots import SYMBOLS
from mgap.pages.print_figures import FIGURES
from mgap.reports.report import facts_of, sections, title_of
from mgap.reports.report_plots import draw

PAGE = 12  # cards at once
PRINTS = 12  # figures for print that are shown
WIDTH = 1200  # pixels of such a figure, at most
EVERY_GROUP = ("All groups", "")
MAKE_ONE = "mgap run pope --model pocket/llava --method vanilla --method mgap"
CLICKS = Path(__file__).with_name("static") / "records.js"
READABLE = 10  # seconds that a refusal stays
_page = partial(render, "runs.html.j2")


class ShownRun(NamedTuple):
    """What is filled in when a run is chosen; each the new value or state of a part of the page."""

    heading: str
    tables: str
    figures: str
    facts: str
    method: Any
    group: Any
    effect: Any
    words: Any
    filters: Any  # hidden where a run has no answers
    parts: Any  # hidden where there is nothing to show


def build_runs(root: Path, models: Sequence[str]) -> OpenedCase:
    """Build the page in the tab that is open now; `models` are those that a case can be opened with."""
    archive, tab = Archive(root), gr.context.Context.block
    with gr.Row(equal_height=False, elem_classes="records-choice"):
        chosen = gr.Dropdown(
            run_choices(archive), value=None, label="Run", info=f"Below {root}, newest first", scale=5, min_width=280
        )
        refresh = gr.Button("Refresh the list", scale=0, min_width=170, elem_classes="records-button")
    heading = gr.HTML("", apply_default_css=False, js_on_load=None, min_height=72)  # progress is told on it
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
    asked = [chosen, method, effect, group, words]
    listed = [cards, page, back, on, effect]
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}

    def show(name: str | None, progress: gr.Progress = gr.Progress()) -> tuple[Any, ...]:  # noqa: B008 - as Gradio wants it
        return (*show_run(archive, name, progress), name)

    def show_another(name: str | None, before: str | None, progress: gr.Progress = gr.Progress()) -> Any:  # noqa: B008
        return gr.skip() if name is not None and name == before else show(name, progress)

    def turn(by: int | None, *given: Any) -> Listed:
        *filters, number = given
        return list_answers(archive, models, *filters, page=0 if by is None else number + by)

    def look(name: str | None) -> Any:
        found = run_choices(archive)
        names = [value for _, value in found]
        return gr.update(choices=found, value=name if name in names else next(iter(names), None))

    def open_case(name: Any, label: Any, event: gr.EventData) -> AskCase | None:
        return or_say(lambda: case_at(archive, models, name, label, getattr(event, "id", None)))

    fill: dict[str, Any] = {"outputs": [*filled, shown], "show_progress_on": heading, "api_visibility": "private"}
    anew: dict[str, Any] = {"fn": partial(turn, None), "inputs": [*asked, page], "outputs": listed, **quiet}
    chosen.input(show, chosen, **fill).then(**anew)
    refresh.click(look, chosen, chosen, **quiet).then(show, chosen, **fill).then(**anew)
    if isinstance(tab, gr.Tab):  # who comes back to the page finds it as it was
        came = tab.select(look, chosen, chosen, **quiet).then(show_another, [chosen, shown], **fill)
        came.then(partial(turn, 0), [*asked, page], listed, **quiet)
    for part in (method.input, group.input, effect.input, words.change):
        part(**anew, trigger_mode="always_last")
    back.click(partial(turn, -1), [*asked, page], listed, **quiet)
    on.click(partial(turn, 1), [*asked, page], listed, **quiet)
    return OpenedCase(case, cards.select(open_case, [chosen, method], case, **quiet))


def _html() -> gr.HTML:
    return gr.HTML("", apply_default_css=False, js_on_load=None)


def run_choices(archive: Archive) -> list[tuple[str, str]]:
    """For a choice: in words, and the name."""
    return [(f"{entry.called}  ({entry.about}, {entry.made[:16]})", entry.name) for entry in archive.entries()]


def show_run(archive: Archive, name: str | None, progress: Any = None) -> ShownRun:
    """Everything of a run but its answers; where it cannot be read, a sentence."""
    told = progress or (lambda *_, **__: None)
    if name is None:
        return _nothing(f"No run lies below {archive.root} yet. Make one, then refresh the list:", MAKE_ONE)
    try:
        told(0.1, desc="Scoring the answers")
        opened = archive.open(name)
        with reading(opened.run.folder):
            told(0.6, desc="Filling the tables")
            heading, tables = heading_of(opened), _page(part="tables", sections=sections([opened.scores]), draw=render_part)
            facts = _page(part="facts", facts=facts_of(opened.scores), draw=render_part)
            told(0.8, desc="Drawing the figures")
            figures = figures_of(opened)
    except MgapError as error:
        return _nothing(f"{error}.")
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


def _nothing(text: str, command: str = "") -> ShownRun:
    said = _page(part="sentence", text=text, command=command)
    empty, hidden = gr.update(choices=[], value=None), gr.update(visible=False)
    return ShownRun(said, "", "", "", empty, gr.update(choices=[EVERY_GROUP], value=""), ALL, "", hidden, hidden)


def heading_of(opened: Opened) -> str:
    scores = opened.scores
    methods = sum(1 for result in scores.results.values() if result.groups)
    lead = (
        f"{scores.model}, {scores.scored:,} of {len(opened.run.samples):,} samples under {methods} method{'s' * (methods != 1)}"
    )
    return _page(part="heading", title=title_of([scores]), lead=f"{lead}.", warnings=scores.warnings)


def figures_of(opened: Opened) -> str:
    """Plots of the scores, and the figures for print that lie in the run's folder, each with its own caption."""
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


class Listed(NamedTuple):
    """A page of cards, its number, whether there is one before and after it, and how many each filter would leave."""

    cards: str
    page: int
    back: Any
    on: Any
    effect: Any


def list_answers(
    archive: Archive, models: Sequence[str], name: Any, label: Any, effect: Any, group: Any, words: Any, *, page: int = 0
) -> Listed:
    """The answers of one method that pass all filters; where there is no such thing, a sentence."""
    closed, unchanged = gr.update(visible=False), gr.update()
    try:
        if not name:
            return Listed("", 0, closed, closed, unchanged)
        opened = archive.open(name)
        answered = pairs(opened.scores, label)
        found = choose(answered, effect, group, words)
    except MgapError as error:
        return Listed(_page(part="sentence", text=f"{error}.", command=""), 0, closed, closed, unchanged)
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
    return Listed(html, page, back, on, gr.update(choices=filters))


def _count(found: Sequence[Pair], of: int, page: int) -> str:
    if not found:
        return f"None of {of:,} answers is of this kind."
    last = min((page + 1) * PAGE, len(found))
    return f"{page * PAGE + 1:,} to {last:,} of {len(found):,} answers{f', out of {of:,}' if len(found) < of else ''}."


def case_at(archive: Archive, models: Sequence[str], name: object, label: object, sample: object) -> AskCase:
    """The case of a card that was clicked; nothing of what the browser names is taken for granted."""
    opened = archive.open(name)
    pair = next((pair for pair in pairs(opened.scores, label) if pair.sample.id == sample), None)
    if pair is None:
        raise RunError(f"{str(sample)[:80]!r} is no answer of this run: choose a card from the list")
    return case_of(opened, str(label), pair, models)


def or_say(case: Callable[[], AskCase]) -> AskCase | None:
    """The case; where it cannot be opened, a sentence on the page and None, so that what follows does not find the last one."""
    try:
        return case()
    except MgapError as error:
        gr.Warning(f"{error}.", duration=READABLE)
        return None
