"""A metaclass for Gradio components that writes no stub file beside their source."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from gradio.component_meta import ComponentMeta


class NoStubMeta(ComponentMeta):
    """The metaclass of this package's components.

    Gradio's own also writes a .pyi next to the module of every new component, for Gradio's developers. In an installed package
    that is litter, and type checkers would read it instead of the source.
    """

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> NoStubMeta:
        return ABCMeta.__new__(cls, name, bases, attributes)
