"""The components of the ask page and their layout: picture on one side, question and answers on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from mgap.backbones.null_images import NULL_IMAGES
from mgap.inspector.answering import MAX_QUESTION_LENGTH, OURS, Knobs, offered
from mgap.inspector.dropped import DroppedPicture
from mgap.inspector.editor import SceneEditor
from mgap.inspector.model_shelf import AUTO, NULL_IMAGE, RANK
from mgap.inspector.theme import render, static
from mgap.inspector.views import COLOURINGS, answers_html
from mgap.pocket.showcase import cases
from mgap.priors.prior_plan import Prior
from mgap.registry import PROMPTS
from mgap.run.method_plans import VANILLA

DRAWN, DROPPED = "drawn", "dropped"
HINT = (
    "Draw a scene or drop a picture, ask something about it, and press Ask: the methods\u2019 answers appear side by side here."
)
METHODS_INFO = (
    f"{VANILLA} is the model as it is. Every other method changes how it picks the next word; {OURS} weakens what the words "
    "alone suggest, without the picture."
)
QUESTIONS = ("What color is the banana?", "Is there a refrigerator in the image?", "Describe this image.")
NULLS = tuple(name for name in NULL_IMAGES if name != "black_same_size")  # undefined without a picture


class Parts:
    """Built inside the current Blocks."""

    def __init__(self, names: Sequence[str], given: Mapping[str, Mapping[str, Any]], prior_folder: str = "") -> None:
        """`names`: the models to choose from; `given`: settings by method; `prior_folder`: of a given prior."""
        first = f"as in {prior_folder}" if prior_folder else NULL_IMAGE
        self._nulls = [(first, NULL_IMAGE), *((name, name) for name in NULLS if name != NULL_IMAGE)]
        own = " or ".join(dict.fromkeys(Prior().of_model(name).prompts for name in names))
        usual = f"as in {prior_folder}" if prior_folder else f"the model\u2019s own ({Prior().count} of {own})"
        self._sets = [(usual, AUTO), *((name, name) for name in PROMPTS.names())]
        self.comparison, self.selected = gr.State(None, time_to_live=3600), gr.State(None)
        self.source = gr.State(DRAWN)
        with gr.Row(elem_id="ask"):
            with gr.Column(scale=4, min_width=300):
                self._picture(names)
            with gr.Column(scale=9, min_width=300):
                self._question(given)
                self._answers()
                self._knobs(Knobs(**given.get(OURS, {})))
                self._details()

    def _picture(self, names: Sequence[str]) -> None:
        self.model = gr.Dropdown(list(names), value=names[0], label="Model", elem_id="model", visible=len(names) > 1)
        with gr.Tabs(elem_id="picture") as self.pictures:
            with gr.Tab("Draw a scene", id=DRAWN) as self.drawing:
                self.editor = SceneEditor(cases()[1].scene, elem_id="editor")
            with gr.Tab("Drop a picture", id=DROPPED) as self.dropping:
                self.dropped = DroppedPicture(label="Picture", elem_id="dropped", height=340)

    def _question(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        with gr.Row(equal_height=True):
            self.question = gr.Textbox(
                QUESTIONS[0], label="Question or request", lines=1, max_lines=4, max_length=MAX_QUESTION_LENGTH,
                elem_id="question", scale=6, min_width=240,
            )  # fmt: skip
            self.button = gr.Button("Ask", variant="primary", elem_id="ask-button", scale=1, min_width=90)
            self.stop = gr.Button("Stop", elem_id="stop-button", scale=1, min_width=90)
        with gr.Row(elem_id="suggestions"):
            self.suggestions = [gr.Button(text, size="sm", scale=0, min_width=60) for text in QUESTIONS]
        why = offered(given)
        possible = [name for name in why if not why[name]]
        self.methods = gr.CheckboxGroup(
            possible, value=[VANILLA, OURS], label="Methods, side by side", elem_id="methods", info=METHODS_INFO,
        )  # fmt: skip
        if refused := {name: reason for name, reason in why.items() if reason}:
            with gr.Accordion(f"{len(refused)} more methods, and what they need first", open=False, elem_id="refused"):
                gr.HTML(render("refused.html.j2", reasons=refused), apply_default_css=False, js_on_load=None)

    def _answers(self) -> None:
        self.answers = gr.HTML(answers_html(None, "beta", hint=HINT), js_on_load=static("inspector.js"), elem_id="answers")
        self.colouring = gr.Radio(list(COLOURINGS), value="beta", label="Colour tokens by", elem_id="colouring")

    def _knobs(self, first: Knobs) -> None:
        with gr.Group(elem_id="knobs"):
            with gr.Row():
                self.alpha = gr.Slider(
                    0, 8, first.alpha, step=0.05, label="\u03b1, MGAP\u2019s strength", elem_id="alpha", min_width=200,
                    info="The paper has 0.75. Above 1 the prior\u2019s part can change its sign where the model hesitates.",
                )  # fmt: skip
                self.lam = gr.Slider(
                    0, 3, first.lam, step=0.05, label="\u03bb, slope of the entropy gate", elem_id="lam", min_width=200,
                    info="How soon an unsure model is corrected in full.",
                )  # fmt: skip
                self.rank = gr.Slider(
                    1, RANK, first.rank, step=1, label="K, directions of the prior", elem_id="rank", min_width=200,
                    info="How many directions are weakened; the strongest come first.",
                )  # fmt: skip
            with gr.Row():
                self.gate = gr.Checkbox(first.gate, label="Entropy gate", elem_id="gate", min_width=140)
                self.protect = gr.Checkbox(
                    first.protect, label="Protection of the picture\u2019s part", elem_id="protect", min_width=140
                )
                self.null = gr.Dropdown(
                    self._nulls, value=NULL_IMAGE, label="Null image of the prior", elem_id="null", min_width=160
                )
                self.prompts = gr.Dropdown(
                    self._sets, value=AUTO, label="Prompts of the prior", elem_id="prompts", min_width=160
                )
        self.knobs = [self.alpha, self.lam, self.rank, self.gate, self.protect]

    def _details(self) -> None:
        with gr.Row():
            with gr.Column(min_width=300):
                self.card = gr.HTML(elem_id="token")
            with gr.Column(min_width=300):
                self.spots = gr.HTML(elem_id="spots")
        self.curves = gr.HTML(elem_id="curves")
        self.words = gr.Dropdown([], multiselect=True, label="Words to follow", elem_id="words", visible=False)
        with gr.Accordion("Take it along", open=False, elem_id="export"):
            self.links = gr.HTML(elem_id="links")
            self.code = gr.Code(language="python", label="The Python lines that give the selected answer again", elem_id="code")
        self.detailed = [self.card, self.spots, self.curves, self.words, self.links, self.code]
