"""The gallery: drawn pictures that agree or conflict with the prior, and what MGAP did in the latest run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from mgap.errors import MgapError, SettingError
from mgap.inspector.answer_pairs import Pair, pairs
from mgap.inspector.archive import Archive, ScoredRun, is_pocket, reading
from mgap.inspector.cases import AskCase, OpenedCase
from mgap.inspector.opening import Card, card, model_refusal, thumbnail
from mgap.inspector.runs import CLICKS, MAKE_ONE, case_at, case_or_warning
from mgap.inspector.theme import render
from mgap.pages.html_page import PagePicture
from mgap.pocket import showcase
from mgap.pocket.demo import recorded_choice
from mgap.registry import POCKET_MODELS
from mgap.reports.examples import spread
from mgap.run.method_plans import VANILLA
from mgap.run.records import Run

AGREE = ("Yellow banana", "A car in the street")  # titles of drawn pictures that show what the prior expects
SHOWN = 4  # answers per effect
OURS = "mgap"
ALL_EFFECTS = "MGAP helps, does nothing, harms"


@dataclass(frozen=True)
class GalleryExhibit:
    """One drawn picture."""

    number: int  # among all drawn pictures
    title: str
    question: str
    truth_label: str
    truth: str
    why: str
    picture: PagePicture


@dataclass(frozen=True)
class DrawnExhibits:
    """Drawn pictures of one kind."""

    heading: str
    exhibits: list[GalleryExhibit]


@dataclass(frozen=True)
class RunExhibits:
    """Answers of the latest run with one effect, and how many there are; `command` makes a run if none has any."""

    heading: str
    about: str
    cards: list[Card]
    command: str = ""


@dataclass(frozen=True)
class Effect:
    """What MGAP did to an answer: `of` says which answers have it, `first` which of them to show first."""

    heading: str
    words: str
    of: Callable[[Pair], bool]
    first: Callable[[Pair], bool] = lambda _: True


EFFECTS = (
    Effect("MGAP helps", "wrong before and right after", lambda pair: pair.passes("gained")),
    Effect("MGAP does nothing", "left as they were", lambda pair: not pair.is_changed, lambda pair: not pair.is_right),
    Effect("MGAP harms", "right before and wrong after", lambda pair: pair.passes("lost")),
)


def build_gallery(root: Path, models: Sequence[str]) -> OpenedCase:
    """Build the page in the current tab. It looks for the latest run when shown and on request."""
    archive, tab = Archive(root), gr.context.Context.block
    shown = gr.HTML(_page([]), js_on_load=CLICKS.read_text(encoding="utf-8"), apply_default_css=False, min_height=240)
    refresh = gr.Button("Look for a newer run", scale=0, min_width=200, elem_classes="records-button")
    case = gr.State(None)

    def fill(progress: gr.Progress = gr.Progress()) -> str:  # noqa: B008 - as Gradio requires
        progress(0.2, desc="Looking for the latest run")
        return gallery_page(archive, models)

    def open_case(event: gr.EventData) -> AskCase | None:
        return case_or_warning(lambda: exhibit_at(archive, models, event._data))

    refresh.click(fill, None, shown, api_visibility="private")
    if isinstance(tab, gr.Tab):
        tab.select(fill, None, shown, api_visibility="private")
    return OpenedCase(case, shown.select(open_case, None, case, api_visibility="private", show_progress="hidden"))


def gallery_page(archive: Archive, models: Sequence[str]) -> str:
    """The drawn pictures, and what MGAP did in the latest run; a sentence if there is none or it cannot be read."""
    try:
        latest = latest_run(archive, models)
        if latest is None:
            missing = (
                f"No finished pocket run with plain decoding and MGAP lies below {archive.root}. Make one, then look for it:"
            )
            return _page([RunExhibits(ALL_EFFECTS, missing, [], MAKE_ONE)])
        return _page(
            run_sections(latest, models),
            before=latest.scores.baseline,
            after=mgap_label(latest),
            run=latest.name,
            refusal=model_refusal(latest, models),
        )
    except MgapError as error:
        return _page([RunExhibits(ALL_EFFECTS, f"{error}.", [])])


def _page(sections: list[RunExhibits], *, before: str = "", after: str = "", run: str = "", refusal: str = "") -> str:
    drawn = drawn_sections()
    return render("gallery.html.j2", drawn=drawn, sections=sections, before=before, after=after, run=run, refusal=refusal)


def drawn_sections() -> list[DrawnExhibits]:
    exhibits = [_exhibit(number, case) for number, case in enumerate(showcase.cases())]
    return [
        DrawnExhibits("Prior and picture agree", [one for one in exhibits if one.title in AGREE]),
        DrawnExhibits("Prior and picture conflict", [one for one in exhibits if one.title not in AGREE]),
    ]


def _exhibit(number: int, case: showcase.ShowcaseCase) -> GalleryExhibit:
    is_caption = case.truth == showcase.CAPTION
    truth = ", ".join(case.scene.names) if is_caption else case.truth
    return GalleryExhibit(
        number,
        case.title,
        case.question,
        "Drawn:" if is_caption else "True:",
        truth,
        case.why,
        thumbnail(case.scene, case.title),
    )


def latest_run(archive: Archive, models: Sequence[str]) -> ScoredRun | None:
    """The newest finished pocket run with MGAP and plain decoding; runs whose model is offered here come first."""
    others: list[str] = []
    for entry in archive.entries():
        try:
            run = archive.run(entry.name)
            with reading(run.folder):
                fits, model = is_comparison(run), run.plan.get("model", {}).get("name")
        except MgapError:
            continue  # the runs page says why
        if fits and model in models:
            return archive.open(entry.name)
        others += [entry.name] * fits
    return archive.open(others[0]) if others else None


def is_comparison(run: Run) -> bool:
    """Whether this is a pocket run with plain decoding and MGAP, and every sample is answered under all its methods."""
    if not is_pocket(run) or run.plan.get("departure") or not {VANILLA, OURS} <= {method.method for method in run.methods}:
        return False
    return all(len(run.records(method)) == len(run.samples) for method in run.methods)


def mgap_label(opened: ScoredRun) -> str:
    """The label of the first MGAP method with answers."""
    labels = [label for label in opened.scores.texts if opened.method(label).method == OURS]
    if not labels:
        raise SettingError(f"{opened.display_name}: no answer of MGAP in it; choose another run on the page of runs")
    return labels[0]


def run_sections(opened: ScoredRun, models: Sequence[str]) -> list[RunExhibits]:
    label = mgap_label(opened)
    answered = pairs(opened.scores, label)
    sections = []
    for effect in EFFECTS:
        these = [pair for pair in answered if effect.of(pair)]
        telling = [pair for pair in these if effect.first(pair)]
        shown = spread(telling, SHOWN)
        shown += spread([pair for pair in these if not effect.first(pair)], SHOWN - len(shown)) if len(shown) < SHOWN else []
        many = f"{len(shown)} of {len(these):,}" if these else "None"
        about = f"{many} that were {effect.words}, among {len(answered):,} answers of {label} in the run {opened.display_name}."
        about += "" if these else " Another run may have some:"
        command = "" if these else stronger_run(opened.scores.model)
        sections.append(RunExhibits(effect.heading, about, [card(opened, pair, models) for pair in shown], command))
    return sections


def stronger_run(model: str) -> str:
    """The command of a full run with this model, or the first embedded one, at the strength picked for it."""
    name = model if model in POCKET_MODELS else next(iter(POCKET_MODELS))
    choice = recorded_choice(name)
    command = f"mgap run pope --model {name} --method vanilla --method mgap"
    return command if choice is None else f"{command} --set mgap.alpha={choice.alpha:g}"


def exhibit_at(archive: Archive, models: Sequence[str], clicked: Any) -> AskCase:
    """The case of a clicked card, which names a drawn picture by number, or a run and a sample."""
    data = clicked if isinstance(clicked, dict) else {}
    if "show" in data:
        chosen = next((case for number, case in enumerate(showcase.cases()) if str(number) == data["show"]), None)
        if chosen is None:
            raise SettingError(f"{str(data['show'])[:80]!r} is no picture of the gallery: choose a card from it")
        return AskCase(chosen.question, chosen.scene, chosen.why)
    opened = archive.open(data.get("run"))
    return case_at(archive, models, opened.name, mgap_label(opened), data.get("id"))
