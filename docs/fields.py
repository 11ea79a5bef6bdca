"""For the API reference: the comment behind a dataclass's field becomes its description, in one table a class.

The source says what a field is beside it, `scenes: int = 500  # of the pocket world`, where a reader of the code looks.
"""

from __future__ import annotations

import io
import tokenize
from typing import Any

import griffe

HIDDEN = ("__post_init__",)  # checks of the fields: no business of a caller's


class FieldComments(griffe.Extension):
    """Adds an Attributes section to the docstring of every dataclass, and takes the single fields out of the page."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in [each for each in pkg.members.values() if not each.is_alias and each.is_module]:
            self.on_package(pkg=module)
        comments = _comments(pkg)
        for found in [each for each in pkg.members.values() if not each.is_alias and each.is_class]:
            if "dataclass" in found.labels:
                _describe(found, comments)


def _describe(found: griffe.Class, comments: dict[int, str]) -> None:
    members = [each for each in found.members.values() if not each.is_alias and each.is_attribute]
    fields = [each for each in members if each.annotation is not None and "property" not in each.labels]
    own = [each for each in fields if not each.name.startswith("_") and "ClassVar" not in str(each.annotation)]
    told = [f"    {each.name}: {comments[each.endlineno]}" for each in own if each.endlineno in comments]
    if told:
        text = found.docstring.value if found.docstring else ""
        found.docstring = griffe.Docstring("\n".join([text, "", "Attributes:", *told]), parent=found)
    for each in (*own, *(found.members[name] for name in HIDDEN if name in found.members)):
        each.public = False  # told in the table and in the signature


def _comments(module: griffe.Module) -> dict[int, str]:
    """By line: the comment behind it, without the mark and what is meant for tools."""
    if not isinstance(module.filepath, list) and module.filepath.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(module.filepath.read_text(encoding="utf-8")).readline)
        found = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        return {line: text for line, text in found.items() if not text.startswith(("type:", "noqa", "fmt:"))}
    return {}
