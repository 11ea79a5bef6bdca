"""A page as pytest collects it: an item for every command and every block of Python, and one for its running text."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clones import SHARED, Shelf, is_published
from executing import Failed, compare, execute
from given import supply
from parsing import NotUnderstood, parse
from reading import Command, PageError, Snippet, parse_page
from smaller import added

# make would run the tests that run this; pip and python3, which makes environments, would change what they run in.
CHECKED = ("make", "pip", "python3", "docker", "kubectl")
ALONE = ("README.md", "docs/tutorial.md")  # commands for the shell stand between their blocks of Python: each begins anew

ABSENT = "the published files (../shared) are not on this machine"


class Pages:
    """The plugin that takes Markdown for tests."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> Markdown | None:
        return Markdown.from_parent(parent, path=file_path, shelf=self.shelf) if file_path.suffix == ".md" else None


class Markdown(pytest.File):
    """A page; one that is not written as it should be fails here."""

    def __init__(self, *, shelf: Shelf, **given: Any) -> None:
        super().__init__(**given)
        self.shelf, self.names = shelf, dict[str, Any](__name__="__main__")

    def collect(self) -> Iterator[pytest.Item]:
        page = parse_page(self.path.read_text(encoding="utf-8"), self.nodeid)
        for block in page.blocks:
            kind: type[Block] = Shell if isinstance(block, Command) else Python
            yield kind.from_parent(self, name=f"{block.line} {block.title[:100]}", block=block)
        if page.inline:
            yield Inline.from_parent(self, name="commands in running text", commands=page.inline)

    def repr_failure(self, excinfo: Any) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, PageError) else super().repr_failure(excinfo)


class _Item(pytest.Item):
    """What the items of a page have in common."""

    parent: Markdown

    def reportinfo(self) -> Any:
        return self.path, 0, f"{self.parent.nodeid} {self.name}"

    def repr_failure(self, excinfo: Any) -> Any:
        is_told = isinstance(excinfo.value, Failed | NotUnderstood)
        return f"{self.parent.nodeid}:{self.name}\n{excinfo.value}" if is_told else super().repr_failure(excinfo)


class Block(_Item):
    """Something to type."""

    def __init__(self, *, block: Any, **given: Any) -> None:
        super().__init__(**given)
        self.block = block


class Shell(Block):
    """A command: run, or parsed where this machine has not what it needs."""

    block: Command

    def runtest(self) -> None:
        if self.block.needs or all(words[0] in CHECKED for words in self.block.simple):
            parse(self.block)
        elif is_published(self.block) and not SHARED.is_dir():
            parse(self.block)
            pytest.skip(f"{ABSENT}: the command was parsed only")
        else:
            shelf = self.parent.shelf
            folder, env = shelf.folder(self.block.page), shelf.environment_of(self.block.page)
            execute(self.block, folder, env, added(self.block))


class Python(Block):
    """A block of Python, run with the names that those before it have made, except on pages whose blocks stand alone."""

    block: Snippet

    def runtest(self) -> None:
        code = compile(self.block.text, f"{self.block.page}:{self.block.line}", "exec")
        if self.block.needs:
            return
        if is_published(self.block) and not SHARED.is_dir():
            pytest.skip(f"{ABSENT}: the block was compiled only")
        here = os.getcwd()
        os.chdir(self.parent.shelf.folder(self.block.page))
        try:
            names = self.parent.names
            if self.block.page in ALONE:
                names = {"__name__": "__main__"}
            else:
                supply(code, names)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(code, names)
        finally:
            os.chdir(here)
        compare(self.block.said, printed.getvalue())


class Inline(_Item):
    """Commands in running text and in tables: their verbs, options and scripts exist."""

    def __init__(self, *, commands: list[Command], **given: Any) -> None:
        super().__init__(**given)
        self.commands = commands

    def runtest(self) -> None:
        wrong = []
        for command in self.commands:
            try:
                parse(command)
            except NotUnderstood as error:
                wrong.append(f"{command.line}: {error}")
        if wrong:
            raise NotUnderstood("\n".join(wrong))
