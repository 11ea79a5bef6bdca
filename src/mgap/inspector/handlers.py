"""Event handlers of the ask page. They know nothing of its layout, and check what the browser sends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import gradio as gr

from mgap.backbones.null_images import NULL_IMAGES
from mgap.decoding.replay import Paths
from mgap.errors import MgapError, SettingError, one_line
from mgap.inspector.answer_exports import links, to_python
from mgap.inspector.answering import (
    OURS,
    Knobs,
    answer,
    build_column,
    check_methods,
    check_question,
    offered,
    redraw,
    stop,
    unfinished,
)
from mgap.inspector.cases import AskCase
from mgap.inspector.columns import Comparison
from mgap.inspector.dropped import Limits, open_dropped
from mgap.inspector.model_shelf import AUTO, NULL_IMAGE, Loaded, ModelShelf
from mgap.inspector.page_parts import DRAWN, DROPPED, HINT
from mgap.inspector.scene_json import scene_of
from mgap.inspector.views import (
    answers_html,
    candidate_words,
    curves_plot,
    default_selection,
    default_words,
    figure_html,
    spots_plot,
    token_html,
)
from mgap.methods.mgap import MGAP
from mgap.pages.plots import Plot
from mgap.pocket.scenes import Scene, render
from mgap.priors.subspace import Subspace
from mgap.registry import PROMPTS
from mgap.run.method_plans import VANILLA
from mgap.settings import check_choice

Selected = tuple[int, int]  # index of a column, and of one of its tokens
MAX_STOPPED_SESSIONS = 256  # many more than can wait in the queue
UNCHANGED = (gr.skip(), gr.skip(), gr.skip())  # answers, comparison and selection stay as they are


@contextmanager
def errors_on_the_page() -> Iterator[None]:
    """Show every error as a sentence; an unexpected one, such as a full GPU, is also printed to the terminal."""
    try:
        yield
    except MgapError as error:
        raise gr.Error(str(error), duration=20, print_exception=False) from error
    except Exception as error:
        message = f"{type(error).__name__}: {one_line(error, 200)}. The terminal of the inspector has more."
        raise gr.Error(message, duration=20) from error


class Handlers:
    """For one page. A user's state is passed in and returned with every call."""

    def __init__(
        self, shelf: ModelShelf, *, limits: Limits, max_new_tokens: int, given: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.shelf, self.limits, self.max_new_tokens, self.given = shelf, limits, max_new_tokens, given
        self._stopped: OrderedDict[str, None] = OrderedDict()  # sessions that pressed stop after their last question

    def load(self, name: str, progress: gr.Progress = gr.Progress()) -> Any:  # noqa: B008  as Gradio requires
        with errors_on_the_page():
            loaded = self.shelf.get(name, lambda text, done, total: progress((done, total), desc=text))
        return answers_html(None, "beta", hint=HINT), None, None, gr.update(maximum=loaded.prior.rank)

    def begin(self, request: gr.Request) -> None:
        """Clear an earlier stop before a question is queued."""
        self._stopped.pop(request.session_hash or "", None)

    def stop(self, request: gr.Request) -> None:
        """End what this user has running or queued, after the current token."""
        self._stopped[request.session_hash or ""] = None
        while len(self._stopped) > MAX_STOPPED_SESSIONS:  # a closed page sends stop and never begins again
            self._stopped.popitem(last=False)

    def check_picture(self, dropped: str | None) -> Any:
        """Warn about a dropped picture that cannot be opened, and remove it."""
        if dropped is None:
            return gr.skip()
        try:
            open_dropped(dropped, self.limits)
        except MgapError as error:
            gr.Warning(str(error), duration=20)
            return None
        return gr.skip()

    def ask(
        self, name: str, source: str, drawn: Any, dropped: str | None, question: str, methods: list[str],
        null: str, prompts: str, alpha: float, lam: float, rank: float, gate: bool, protect: bool, colouring: str,
        request: gr.Request, progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> Iterator[Any]:  # fmt: skip
        with errors_on_the_page():
            check_question(question)
            check_methods(methods, self.given)
            drawn_or_name: Scene | str
            if source == DRAWN:
                drawn_or_name = scene = scene_of(drawn)
                picture = render(scene)
            elif dropped is None:
                raise SettingError("there is no picture yet: drop one, or draw a scene")
            else:
                drawn_or_name, picture = Path(dropped).name, open_dropped(dropped, self.limits)
            loaded = self.shelf.get(name, lambda text, done, total: progress((done, total), desc=text))
            prior, folder = self._prior(loaded, null, prompts)
            comparison = Comparison(
                loaded,
                prior,
                picture,
                drawn_or_name,
                question.strip(),
                self.max_new_tokens,
                Paths(loaded.model),
                prior_folder=folder,
            )
            knobs = Knobs(alpha, lam, int(rank), gate, protect)
            comparison = self._columns(comparison, methods, knobs, {**self.given, OURS: {}})
            yield from self._stream(comparison, colouring, request.session_hash or "")

    def ask_case(
        self, case: AskCase | None, name: str, null: str, prompts: str,
        alpha: float, lam: float, rank: float, gate: bool, protect: bool, colouring: str, request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        """Ask a case of a run or the gallery, with its own prior and settings."""
        yield UNCHANGED
        if case is None:
            return
        with errors_on_the_page():
            loaded = self.shelf.get(case.model or name, None)
            prior, folder = (case.prior, case.prior_folder) if case.prior else self._prior(loaded, null, prompts)
            shown = case.picture
            picture, source = (render(shown), shown) if isinstance(shown, Scene) else (shown, case.name)
            comparison = Comparison(
                loaded, prior, picture, source, case.question, self.max_new_tokens, Paths(loaded.model),
                prior_folder=folder, recorded=case.recorded,
            )  # fmt: skip
            knobs = Knobs(alpha, lam, int(rank), gate, protect)
            settings = {**self.given, case.method: dict(case.settings)}
            comparison = self._columns(comparison, [VANILLA, case.method], knobs, settings)
            yield from self._stream(comparison, colouring, request.session_hash or "")

    def _prior(self, loaded: Loaded, null: str, prompts: str) -> tuple[Subspace, str]:
        """The prior, and the folder it was read from, if any."""
        check_choice("null image", null, NULL_IMAGES)  # a browser may send anything, and prompts could name a file
        check_choice("prompts", prompts, (AUTO, *PROMPTS.names()))
        if (null, prompts) == (NULL_IMAGE, AUTO):
            return loaded.prior, loaded.prior_folder
        with loaded.lock:
            return loaded.prior_of(null, prompts), ""

    def _columns(
        self, comparison: Comparison, names: Sequence[str], knobs: Knobs, given: Mapping[str, Mapping[str, Any]]
    ) -> Comparison:
        columns = tuple(build_column(name, comparison.prior, knobs, given.get(name, {})) for name in dict.fromkeys(names))
        return replace(comparison, columns=columns)

    def _stream(
        self, comparison: Comparison, colouring: str, session: str, places: Sequence[int] | None = None
    ) -> Iterator[Any]:
        yield answers_html(comparison, colouring), comparison, None
        with closing(answer(comparison, places)) as updates:
            for comparison in updates:
                if session in self._stopped:
                    comparison = stop(comparison)
                    break
                yield answers_html(comparison, colouring), comparison, None
        selection = default_selection(comparison)
        yield answers_html(comparison, colouring, selection), comparison, selection

    def select(self, comparison: Comparison | None, event: gr.EventData) -> Selected | None:
        """The token that the browser says was pressed; None if it does not exist."""
        column, token = getattr(event, "column", None), getattr(event, "token", None)
        if comparison is None or not isinstance(column, int) or not isinstance(token, int):
            return None
        if not (0 <= column < len(comparison.columns) and 0 <= token < len(comparison.columns[column].tokens)):
            return None
        return column, token

    def recolour(self, comparison: Comparison | None, colouring: str, selected: Selected | None) -> str:
        return answers_html(comparison, colouring, selected, hint=HINT)

    def redraw(
        self, comparison: Comparison | None, colouring: str, selected: Selected | None,
        alpha: float, lam: float, rank: float, gate: bool, protect: bool,
    ) -> Any:  # fmt: skip
        """Replay MGAP at the sliders' settings from stored states, at once."""
        if comparison is None:
            return UNCHANGED
        with errors_on_the_page():
            redrawn = redraw(comparison, Knobs(alpha, lam, int(rank), gate, protect))
        if redrawn is comparison:
            return UNCHANGED
        selection = selected if _exists(redrawn, selected) else default_selection(redrawn)
        return answers_html(redrawn, colouring, selection), redrawn, selection

    def finish(
        self, comparison: Comparison | None, colouring: str, alpha: float, lam: float, rank: float, gate: bool, protect: bool,
        request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        """Let the model continue where stored states end, at the sliders' settings."""
        yield UNCHANGED  # Gradio clears outputs that a generator never yields
        if comparison is None:
            return
        with errors_on_the_page():
            redrawn = redraw(comparison, Knobs(alpha, lam, int(rank), gate, protect))
            if redrawn is not comparison or unfinished(redrawn):
                yield from self._stream(redrawn, colouring, request.session_hash or "", unfinished(redrawn))

    def change_prior(
        self, comparison: Comparison | None, colouring: str, selected: Selected | None,
        alpha: float, lam: float, rank: float, gate: bool, protect: bool, null: str, prompts: str,
    ) -> Any:  # fmt: skip
        """Replay the same states with another prior."""
        if comparison is not None:
            with errors_on_the_page():
                prior, folder = self._prior(comparison.loaded, null, prompts)
                comparison = replace(comparison, prior=prior, prior_folder=folder)
        return self.redraw(comparison, colouring, selected, alpha, lam, rank, gate, protect)

    def details(self, comparison: Comparison | None, selected: Selected | None) -> Any:
        """Everything below the answers: the token's card, where its state lies, the sweep, and the exports."""
        if comparison is None or not _exists(comparison, selected):
            return "", "", "", gr.update(choices=[], value=[], visible=False), "", ""
        assert selected is not None
        place, at = selected
        words, candidates = default_words(comparison, selected), list(candidate_words(comparison, selected))
        spots, curves = spots_plot(comparison, selected), curves_plot(comparison, selected, words)
        return (
            token_html(comparison, selected),
            figure_html(spots, comparison, comparison.columns_with_prefix(place, at), self._about_spots(comparison)),
            self._sweep(comparison, selected, curves),
            gr.update(choices=candidates, value=words, visible=curves is not None),
            links(comparison, {"state": spots, "sweep": curves}),
            to_python(comparison, comparison.columns[place]),
        )

    def follow_words(self, comparison: Comparison | None, selected: Selected | None, words: list[str]) -> Any:
        if comparison is None or selected is None:
            return gr.skip()
        return self._sweep(comparison, selected, curves_plot(comparison, selected, words))

    def _sweep(self, comparison: Comparison, selected: Selected, plot: Plot | None) -> str:
        shown = [n for n in comparison.columns_with_prefix(*selected) if comparison.columns[n].name != VANILLA]
        about = (
            "At this token, from states in hand: no new pass through the model. Marks: the strength of each method. What a "
            "method drops as unlikely afterwards is still in it."
        )
        return figure_html(
            plot, comparison, shown, about if plot else "No method here has a strength to sweep, or no word is chosen."
        )

    def _about_spots(self, comparison: Comparison) -> str:
        land = comparison.loaded.landscape
        if land is None:
            return comparison.loaded.why_no_bank
        return (
            f"Pale: {len(land.points)} of {land.states} states of normal decoding, along their first two principal directions; "
            "small dots: the other tokens of this answer; arrows: from the plain state to the one decoded from. Below: how far "
            "away that is in all dimensions."
        )

    def show(self, case: AskCase | None, name: str) -> list[Any]:
        """The inputs set to the case's values."""
        if case is None:
            return [gr.skip()] * (8 + len(fields(Knobs)))
        is_drawn, knobs = isinstance(case.picture, Scene), [gr.skip()] * len(fields(Knobs))
        if case.method == OURS and case.prior is not None:
            knobs = list(astuple(Knobs.of(MGAP(case.prior, **case.settings))))
        return [
            gr.Tabs(selected="ask"),
            gr.Tabs(selected=DRAWN if is_drawn else DROPPED),
            DRAWN if is_drawn else DROPPED,
            case.model or name,
            case.picture if is_drawn else gr.skip(),
            gr.skip() if is_drawn else case.picture,
            case.question,
            [name for name in (VANILLA, case.method) if not offered(self.given)[name]],
            *knobs,
        ]


def _exists(comparison: Comparison, selected: Selected | None) -> bool:
    if selected is None:
        return False
    place, at = selected
    return place < len(comparison.columns) and at < len(comparison.columns[place].tokens)
