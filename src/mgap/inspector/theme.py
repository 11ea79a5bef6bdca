"""Templates, style sheets, scripts and Gradio theme. The template engine always escapes text."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

STYLES = ("inspector.css", "editor.css", "records.css")


@cache
def _environment() -> Environment:
    loader = PackageLoader("mgap.inspector", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **content: object) -> str:
    """Render a template of this package; a missing variable is an error."""
    return _environment().get_template(template).render(**content)


def static(name: str) -> str:
    """The text of a style sheet or script of this package."""
    return (files("mgap.inspector") / "static" / name).read_text(encoding="utf-8")


def style() -> str:
    """All style sheets as one."""
    return "\n".join(static(name) for name in STYLES)


def theme() -> Any:
    """Gradio's base theme with system fonts, so that none is fetched, and colours with enough contrast."""
    import gradio as gr

    words = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Liberation Sans", "sans-serif")
    code = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "Liberation Mono", "monospace")
    return gr.themes.Base(
        primary_hue="blue", secondary_hue="blue", neutral_hue="zinc", font=list(words), font_mono=list(code)
    ).set(
        body_background_fill="#f6f6f3",
        body_background_fill_dark="#15171b",
        block_background_fill="#ffffff",
        block_background_fill_dark="#1e2126",
        button_primary_background_fill="#0067a5",
        button_primary_background_fill_hover="#00558a",
        button_primary_background_fill_dark="#0b74b8",
        button_primary_text_color="#ffffff",
        block_info_text_color="#585c63",
        block_info_text_color_dark="#adb3bc",
        slider_color="#0067a5",
        slider_color_dark="#6bb8f2",
    )
