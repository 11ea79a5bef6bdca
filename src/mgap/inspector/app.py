"""The inspector as one page with three tabs: ask, gallery and runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from mgap.inspector.ask_page import AskPage
from mgap.inspector.dropped import Limits
from mgap.inspector.gallery import build_gallery
from mgap.inspector.model_shelf import ModelShelf
from mgap.inspector.runs import build_runs
from mgap.inspector.theme import render

TITLE = "mgap inspect"


def build_page(
    shelf: ModelShelf,
    *,
    runs: Path,
    limits: Limits,
    max_new_tokens: int,
    given: Mapping[str, Mapping[str, Any]] | None = None,
    banner: str = "",
) -> gr.Blocks:
    """`given` has settings by method; `banner` is shown at the top, e.g. a warning about who can reach the page."""
    warnings.filterwarnings("ignore", r"alpha=.* can flip the sign")  # the slider's text says so
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.HTML(render("head.html.j2", banner=banner), elem_id="head")
        with gr.Tabs(elem_id="pages") as tabs:
            with gr.Tab("Ask", id="ask"):
                asking = AskPage(shelf, limits=limits, max_new_tokens=max_new_tokens, given=given)
            with gr.Tab("Gallery", id="gallery"):
                shown = build_gallery(runs, shelf.names)
            with gr.Tab("Runs", id="runs"):
                opened = build_runs(runs, shelf.names)
        page.unload(asking.handlers.stop)  # the page was closed
        asking.opens(shown, tabs)
        asking.opens(opened, tabs)
    return page
