"""How a class of ours becomes a Gradio component without a file beside its source."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from gradio.component_meta import ComponentMeta


class Ours(ComponentMeta):
    """The metaclass of components made here.

    Gradio's own also writes a .pyi next to the module of every new component, for the editors of those who develop Gradio; in
    an installed package that is litter, and type checkers would read it instead of the source.
    """

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Ours:
        return ABCMeta.__new__(cls, name, bases, attributes)
