"""What the events of the page that asks do. Nothing here knows where a part stands; what the browser sends is checked."""

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
from mgap.inspector.columns import AskedColumns
from mgap.inspector.dropped import Limits, open_dropped
from mgap.inspector.export import links, to_python
from mgap.inspector.model_shelf import AUTO, NULL_IMAGE, Loaded, ModelShelf
from mgap.inspector.page_parts import DRAWN, DROPPED, HINT
from mgap.inspector.scene_json import scene_of
from mgap.inspector.views import (
    answers_html,
    curves_plot,
    figure_html,
    first_look,
    first_words,
    spots_plot,
    token_html,
    words_of,
)
from mgap.methods.mgap import MGAP
from mgap.pages.plots import Plot
from mgap.pocket.scenes import Scene, render
from mgap.priors.subspace import Subspace
from mgap.registry import PROMPTS
from mgap.run.method_plans import VANILLA
from mgap.settings import check_choice

Selected = tuple[int, int]  # which column, and which of its tokens
REMEMBERED = 256  # sessions that are remembered so: many more than wait in line
NOTHING = (gr.skip(), gr.skip(), gr.skip())  # answers, what was asked, and what is looked at stay as they are


@contextmanager
def told_in_the_page() -> Iterator[None]:
    """Every error as a sentence; one that nobody expected, such as a full GPU, is also printed where the inspector runs."""
    try:
        yield
    except MgapError as error:
        raise gr.Error(str(error), duration=20, print_exception=False) from error
    except Exception as error:
        said = f"{type(error).__name__}: {one_line(error, 200)}. The terminal of the inspector has more."
        raise gr.Error(said, duration=20) from error


class Handlers:
    """For one page; what belongs to one user comes in and goes out with every call."""

    def __init__(
        self, shelf: ModelShelf, *, limits: Limits, max_new_tokens: int, given: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.shelf, self.limits, self.max_new_tokens, self.given = shelf, limits, max_new_tokens, given
        self._stopped: OrderedDict[str, None] = OrderedDict()  # sessions whose user wants no more of what was asked last

    def load(self, name: str, progress: gr.Progress = gr.Progress()) -> Any:  # noqa: B008  how Gradio asks for it
        with told_in_the_page():
            loaded = self.shelf.get(name, lambda text, done, total: progress((done, total), desc=text))
        return answers_html(None, "beta", hint=HINT), None, None, gr.update(maximum=loaded.prior.rank)

    def begin(self, request: gr.Request) -> None:
        """Before a question gets in line: it is not stopped yet."""
        self._stopped.pop(request.session_hash or "", None)

    def stop(self, request: gr.Request) -> None:
        """Whatever of this user's is being answered, or waits, ends after the token that is being made."""
        self._stopped[request.session_hash or ""] = None
        while len(self._stopped) > REMEMBERED:  # a page that is closed says stop, and never begins again
            self._stopped.popitem(last=False)

    def check_picture(self, dropped: str | None) -> Any:
        """What was dropped, or, where it cannot be opened, why not; it is then taken out again."""
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
        with told_in_the_page():
            check_question(question)
            check_methods(methods, self.given)
            shown: Scene | str
            if source == DRAWN:
                shown = scene = scene_of(drawn)
                picture = render(scene)
            elif dropped is None:
                raise SettingError("there is no picture yet: drop one, or draw a scene")
            else:
                shown, picture = Path(dropped).name, open_dropped(dropped, self.limits)
            loaded = self.shelf.get(name, lambda text, done, total: progress((done, total), desc=text))
            prior, folder = self._prior(loaded, null, prompts)
            asked = AskedColumns(
                loaded, prior, picture, shown, question.strip(), self.max_new_tokens, Paths(loaded.model), prior_folder=folder
            )
            asked = self._columns(asked, methods, Knobs(alpha, lam, int(rank), gate, protect), {**self.given, OURS: {}})
            yield from self._stream(asked, colouring, request.session_hash or "")

    def ask_case(
        self, case: AskCase | None, name: str, null: str, prompts: str,
        alpha: float, lam: float, rank: float, gate: bool, protect: bool, colouring: str, request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        """As a run or the gallery has it, with its own prior and settings."""
        yield NOTHING
        if case is None:
            return
        with told_in_the_page():
            loaded = self.shelf.get(case.model or name, None)
            prior, folder = (case.prior, case.prior_folder) if case.prior else self._prior(loaded, null, prompts)
            shown = case.picture
            picture, source = (render(shown), shown) if isinstance(shown, Scene) else (shown, case.name)
            asked = AskedColumns(
                loaded, prior, picture, source, case.question, self.max_new_tokens, Paths(loaded.model),
                prior_folder=folder, told=case.told,
            )  # fmt: skip
            knobs = Knobs(alpha, lam, int(rank), gate, protect)
            asked = self._columns(asked, [VANILLA, case.method], knobs, {**self.given, case.method: dict(case.settings)})
            yield from self._stream(asked, colouring, request.session_hash or "")

    def _prior(self, loaded: Loaded, null: str, prompts: str) -> tuple[Subspace, str]:
        """The prior, and the folder it was read from, if it was."""
        check_choice("null image", null, NULL_IMAGES)  # a browser may send anything, and a name of prompts may be a file's
        check_choice("prompts", prompts, (AUTO, *PROMPTS.names()))
        if (null, prompts) == (NULL_IMAGE, AUTO):
            return loaded.prior, loaded.prior_folder
        with loaded.turn:
            return loaded.prior_of(null, prompts), ""

    def _columns(
        self, asked: AskedColumns, names: Sequence[str], knobs: Knobs, given: Mapping[str, Mapping[str, Any]]
    ) -> AskedColumns:
        columns = tuple(build_column(name, asked.prior, knobs, given.get(name, {})) for name in dict.fromkeys(names))
        return replace(asked, columns=columns)

    def _stream(self, asked: AskedColumns, colouring: str, session: str, places: Sequence[int] | None = None) -> Iterator[Any]:
        yield answers_html(asked, colouring), asked, None
        with closing(answer(asked, places)) as made:
            for asked in made:
                if session in self._stopped:
                    asked = stop(asked)
                    break
                yield answers_html(asked, colouring), asked, None
        look = first_look(asked)
        yield answers_html(asked, colouring, look), asked, look

    def select(self, asked: AskedColumns | None, event: gr.EventData) -> Selected | None:
        """The browser says which token was pressed; what is not there is not taken."""
        column, token = getattr(event, "column", None), getattr(event, "token", None)
        if asked is None or not isinstance(column, int) or not isinstance(token, int):
            return None
        if not (0 <= column < len(asked.columns) and 0 <= token < len(asked.columns[column].tokens)):
            return None
        return column, token

    def coloured(self, asked: AskedColumns | None, colouring: str, selected: Selected | None) -> str:
        return answers_html(asked, colouring, selected, hint=HINT)

    def redraw(
        self, asked: AskedColumns | None, colouring: str, selected: Selected | None,
        alpha: float, lam: float, rank: float, gate: bool, protect: bool,
    ) -> Any:  # fmt: skip
        """From states in hand, at once."""
        if asked is None:
            return NOTHING
        with told_in_the_page():
            turned = redraw(asked, Knobs(alpha, lam, int(rank), gate, protect))
        if turned is asked:
            return NOTHING
        kept = selected if _is_there(turned, selected) else first_look(turned)
        return answers_html(turned, colouring, kept), turned, kept

    def finish(
        self, asked: AskedColumns | None, colouring: str, alpha: float, lam: float, rank: float, gate: bool, protect: bool,
        request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        """When its turn has come: the model goes on where states in hand end, at the settings of the sliders."""
        yield NOTHING  # Gradio empties what a generator says nothing of
        if asked is None:
            return
        with told_in_the_page():
            turned = redraw(asked, Knobs(alpha, lam, int(rank), gate, protect))
            if turned is not asked or unfinished(turned):
                yield from self._stream(turned, colouring, request.session_hash or "", unfinished(turned))

    def other_prior(
        self, asked: AskedColumns | None, colouring: str, selected: Selected | None,
        alpha: float, lam: float, rank: float, gate: bool, protect: bool, null: str, prompts: str,
    ) -> Any:  # fmt: skip
        """The same states, cut along another prior."""
        if asked is not None:
            with told_in_the_page():
                prior, folder = self._prior(asked.loaded, null, prompts)
                asked = replace(asked, prior=prior, prior_folder=folder)
        return self.redraw(asked, colouring, selected, alpha, lam, rank, gate, protect)

    def details(self, asked: AskedColumns | None, selected: Selected | None) -> Any:
        """Everything below the answers: the token's card, where its state lies, the sweep, and what can be taken along."""
        if asked is None or not _is_there(asked, selected):
            return "", "", "", gr.update(choices=[], value=[], visible=False), "", ""
        assert selected is not None
        place, at = selected
        words, known = first_words(asked, selected), list(words_of(asked, selected))
        spots, curves = spots_plot(asked, selected), curves_plot(asked, selected, words)
        return (
            token_html(asked, selected),
            figure_html(spots, asked, asked.alike(place, at), self._about_spots(asked)),
            self._sweep(asked, selected, curves),
            gr.update(choices=known, value=words, visible=curves is not None),
            links(asked, {"state": spots, "sweep": curves}),
            to_python(asked, asked.columns[place]),
        )

    def swept(self, asked: AskedColumns | None, selected: Selected | None, words: list[str]) -> Any:
        if asked is None or selected is None:
            return gr.skip()
        return self._sweep(asked, selected, curves_plot(asked, selected, words))

    def _sweep(self, asked: AskedColumns, selected: Selected, plot: Plot | None) -> str:
        shown = [n for n in asked.alike(*selected) if asked.columns[n].name != VANILLA]
        about = (
            "At this token, from states in hand: no new pass through the model. Marks: the strength of each method. What a "
            "method drops as unlikely afterwards is still in it."
        )
        return figure_html(
            plot, asked, shown, about if plot else "No method here has a strength to sweep, or no word is chosen."
        )

    def _about_spots(self, asked: AskedColumns) -> str:
        land = asked.loaded.landscape
        if land is None:
            return asked.loaded.why_no_bank
        return (
            f"Pale: {len(land.points)} of {land.states} states of normal decoding, along their first two principal directions; "
            "small dots: the other tokens of this answer; arrows: from the plain state to the one decoded from. Below: how far "
            "away that is in all dimensions."
        )

    def show(self, case: AskCase | None, name: str) -> list[Any]:
        """The inputs as the case has them."""
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


def _is_there(asked: AskedColumns, selected: Selected | None) -> bool:
    if selected is None:
        return False
    place, at = selected
    return place < len(asked.columns) and at < len(asked.columns[place].tokens)
