"""The ask page: which event calls which handler, and which parts its outputs update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from mgap.inspector.cases import OpenedCase
from mgap.inspector.dropped import Limits
from mgap.inspector.handlers import Handlers
from mgap.inspector.model_shelf import ModelShelf
from mgap.inspector.page_parts import DRAWN, DROPPED, Parts

QUICK: dict[str, Any] = {"concurrency_limit": 8, "show_progress": "hidden", "api_visibility": "private"}
AT_ONCE: dict[str, Any] = {**QUICK, "concurrency_limit": None, "queue": False}
MODEL: dict[str, Any] = {  # one event at a time uses a model; others queue and see their position
    "concurrency_id": "model",
    "concurrency_limit": 1,
    "show_progress": "minimal",
    "api_visibility": "private",
}


class AskPage:
    """Built inside the current Blocks."""

    def __init__(
        self, shelf: ModelShelf, *, limits: Limits, max_new_tokens: int, given: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.parts = Parts(shelf.names, given or {}, shelf.prior_folder)
        self.handlers = Handlers(shelf, limits=limits, max_new_tokens=max_new_tokens, given=given or {})
        self._choose()
        self._ask()
        self._look()
        self._turn()

    def _choose(self) -> None:
        """Choosing a picture, a question and a model."""
        p = self.parts
        p.drawing.select(lambda: DRAWN, outputs=p.source, **QUICK)
        p.dropping.select(lambda: DROPPED, outputs=p.source, **QUICK)
        for button in p.suggestions:
            button.click(lambda text=button.value: text, outputs=p.question, **QUICK)
        p.model.input(
            self.handlers.load, [p.model], [p.answers, p.comparison, p.selected, p.rank], **{**MODEL, "show_progress": "full"}
        )
        p.dropped.upload(self.handlers.check_picture, [p.dropped], [p.dropped], **QUICK)

    def _ask(self) -> None:
        p = self.parts
        shown = [p.model, p.source, p.editor, p.dropped, p.question, p.methods, p.null, p.prompts, *p.knobs, p.colouring]
        begun = gr.on([p.button.click, p.question.submit], self.handlers.begin, trigger_mode="once", **AT_ONCE)
        self._then_finish(begun.then(self.handlers.ask, shown, [p.answers, p.comparison, p.selected], **MODEL))
        p.stop.click(self.handlers.stop, **AT_ONCE)

    def _look(self) -> None:
        """Selecting a token, the number that colours tokens, and words to follow."""
        p = self.parts
        self._then_details(p.answers.select(self.handlers.select, [p.comparison], [p.selected], **QUICK))
        p.colouring.input(self.handlers.recolour, [p.comparison, p.colouring, p.selected], [p.answers], **QUICK)
        p.words.input(self.handlers.follow_words, [p.comparison, p.selected, p.words], [p.curves], **QUICK)

    def _turn(self) -> None:
        """Sliders and switches: replay from stored states at once, then let the model continue where those end."""
        p = self.parts
        turned, outcome = [p.comparison, p.colouring, p.selected, *p.knobs], [p.answers, p.comparison, p.selected]
        drawn = gr.on(
            [knob.input for knob in p.knobs], self.handlers.redraw, turned, outcome, trigger_mode="always_last", **QUICK
        )
        other = gr.on(
            [p.null.input, p.prompts.input], self.handlers.change_prior, [*turned, p.null, p.prompts], outcome, **MODEL
        )
        for event in (drawn, other):
            self._then_finish(event.then(self.handlers.begin, **AT_ONCE))

    def _then_finish(self, event: Any) -> None:
        """Let the model finish open columns; a slider may have moved while answers were being generated."""
        p = self.parts
        turned, outcome = [p.comparison, p.colouring, *p.knobs], [p.answers, p.comparison, p.selected]
        self._then_details(event.then(self.handlers.finish, turned, outcome, **{**MODEL, "show_progress": "hidden"}))

    def _then_details(self, event: Any) -> None:
        p = self.parts
        event.then(self.handlers.details, [p.comparison, p.selected], p.detailed, **QUICK)

    def opens(self, opening: OpenedCase, tabs: gr.Tabs) -> None:
        """Show and ask the case that another page opens."""
        p = self.parts
        inputs = [p.pictures, p.source, p.model, p.editor, p.dropped, p.question, p.methods, *p.knobs]
        shown = opening.event.then(self.handlers.show, [opening.case, p.model], [tabs, *inputs], **QUICK)
        answered = shown.then(self.handlers.begin, **AT_ONCE).then(
            self.handlers.ask_case, [opening.case, p.model, p.null, p.prompts, *p.knobs, p.colouring],
            [p.answers, p.comparison, p.selected], **MODEL,
        )  # fmt: skip
        self._then_details(answered)
