"""How the page looks: its templates, style sheets and scripts. Text is escaped by the template engine, always."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

STYLES = ("inspector.css", "editor.css", "records.css")


@cache
def _environment() -> Environment:
    loader = PackageLoader("mgap.inspector", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **content: object) -> str:
    """Fill one of the templates of this package; a name that the template needs and is not given is an error."""
    return _environment().get_template(template).render(**content)


def static(name: str) -> str:
    """The text of a style sheet or script of this package."""
    return (files("mgap.inspector") / "static" / name).read_text(encoding="utf-8")


def style() -> str:
    """All style sheets as one."""
    return "\n".join(static(name) for name in STYLES)
