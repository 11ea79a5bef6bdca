"""How the inspector's markup is made: from the templates of this package; text is escaped by the template engine, always."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **content: object) -> str:
    """Fill one of the templates of this package; a name that the template needs and is not given is an error."""
    loader = PackageLoader("mgap.inspector", "templates")
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return page.get_template(template).render(**content)
