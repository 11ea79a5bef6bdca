"""The commands of a Markdown page: its fenced blocks in order, cut into commands, and the commands in running text and tables.

A block has a tag of `TAGS`. Those of bash and python are run as they stand, unless a comment before them says what they need:

    <!-- needs: gpu -->
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from markdown_it import MarkdownIt
from markdown_it.token import Token

RUN = ("bash", "python")
TAGS = (*RUN, "text", "yaml", "json", "toml", "csv")
NEEDS = ("gpu", "vllm", "network", "docker", "hours")
NAMED = ("mgap ", "python bench/", "python examples/", "python -m mgap", "torchrun ", "accelerate ", "make ", "pip install ")

_NEEDS = re.compile(r"<!--\s*needs:\s*(.*?)\s*-->")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_SAYS = re.compile(r"mgap \w+:")  # what a command prints
_OPERATORS = re.compile(r"[|&;()\n]+")
_KEYWORDS = ("do", "done", "then", "else", "fi", "!", "time")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)")
_PARSER = MarkdownIt("commonmark").enable("table")


class PageError(Exception):
    """A page that is not written as it should be; the message says where and what to write."""


@dataclass(frozen=True)
class Command:
    """A command of a shell, or a few where one goes on in the background beside the next."""

    page: str
    line: int
    text: str
    needs: str = ""
    said: str = ""  # what its block prints, where a block of text right after that shows it; for the last of a block
    begins: bool = True  # whether it is the first of its block
    is_shown: bool = False  # whether the page shows what its block prints
    is_inline: bool = False

    @property
    def title(self) -> str:
        return " ".join(self.text.replace("\\\n", " ").split())

    @cached_property
    def simple(self) -> list[list[str]]:
        """The words of every simple command in it, without variables that are set for it."""
        text = _HEREDOC.split(self.text)[0] if _HEREDOC.search(self.text) else self.text
        lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="|&;()\n")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        found: list[list[str]] = [[]]
        for word in lexer:
            if _OPERATORS.fullmatch(word):
                found.append([])
            elif found[-1] or not (_VARIABLE.match(word) or word in _KEYWORDS):
                found[-1].append(word)
        return [words for words in found if words]


@dataclass(frozen=True)
class Snippet:
    """A block of Python."""

    page: str
    line: int
    text: str
    needs: str = ""
    said: str = ""  # what it prints, where a block of text right after it shows it

    @property
    def title(self) -> str:
        """Its first line that does something."""
        lines = (line.strip() for line in self.text.splitlines())
        first = next((line for line in lines if line and not line.startswith(("import ", "from ", "#"))), "python")
        return " ".join(first.split())


@dataclass(frozen=True)
class Page:
    """What a page asks its reader to type, in its order."""

    name: str
    blocks: list[Command | Snippet]
    inline: list[Command]


def parse_page(text: str, name: str) -> Page:
    """Raises PageError at a block without a tag, a tag or a need that is unknown, and shell that bash cannot read."""
    blocks, inline = list[Command | Snippet](), list[Command]()
    tokens, needs = _PARSER.parse(text), ""
    for place, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            needs = _read_needs(token.content, f"{name}:{line}")
            continue
        if token.type == "code_block":
            raise PageError(
                f"{name}:{line}: an indented block cannot say what it is; write a fence with one of {_listed(TAGS)}"
            )
        if token.type == "fence":
            blocks += _read_fence(token, name, line, needs, _said(tokens[place + 1 : place + 2]))
        elif token.type == "inline":
            inline += _read_inline(token, name, line)
        if needs and token.type != "fence":
            raise PageError(f"{name}:{line}: `needs: {needs}` stands right before the block that it is about")
        needs = ""
    return Page(name, blocks, inline)


def _read_needs(content: str, where: str) -> str:
    found = _NEEDS.search(content)
    if found is None:
        return ""
    if found[1] not in NEEDS:
        raise PageError(f"{where}: unknown need {found[1]!r}; write one of {_listed(NEEDS)}")
    return found[1]


def _read_fence(token: Token, name: str, line: int, needs: str, said: str) -> Iterator[Command | Snippet]:
    tag = token.info.strip()
    if tag not in TAGS:
        raise PageError(f"{name}:{line}: a block tagged {tag!r}; tag it with one of {_listed(TAGS)}")
    if needs and tag not in RUN:
        raise PageError(f"{name}:{line}: `needs: {needs}` before a block of {tag}, which is not run")
    if tag == "python":
        yield Snippet(name, line + 1, token.content, needs, said)
    elif tag == "bash":
        commands = split(token.content, f"{name}:{line}")
        for number, (at, text) in enumerate(commands, start=1):
            is_last = number == len(commands)
            yield Command(name, line + at, text, needs, said if is_last else "", begins=number == 1, is_shown=bool(said))


def split(text: str, where: str) -> list[tuple[int, str]]:
    """A block's commands with the line, from 1, that each begins on. bash itself judges where a command ends."""
    found, kept, begins = list[tuple[int, str]](), list[str](), 1
    for number, line in enumerate(text.splitlines(), start=1):
        if not kept:
            begins = number
        kept.append(line)
        whole = "\n".join(kept)
        if _is_open(whole):
            continue
        if any(each.strip() and not each.lstrip().startswith("#") for each in kept):
            found.append((begins, whole))
        kept = []
    if kept and not _is_whole("\n".join(kept)):
        raise PageError(f"{where}: bash finds no end of {kept[0]!r}")
    return [*found, (begins, "\n".join(kept))] if kept else found


def _is_open(text: str) -> bool:
    """Whether the next line belongs to it: a quote, a loop, a here-document, a backslash, or a job in the background."""
    bare = re.sub(r"\s#[^'\"]*$", "", text.rstrip())
    return bare.endswith(("\\", "&")) or not _is_whole(text)


def _is_whole(text: str) -> bool:
    judged = subprocess.run(["bash", "-n"], input=text + "\n", capture_output=True, text=True, check=False)
    return not text.rstrip().endswith("\\") and not judged.returncode and not judged.stderr


def _said(following: list[Token]) -> str:
    """The output that a page shows right after a command."""
    return next((t.content.strip() for t in following if t.type == "fence" and t.info.strip() == "text"), "")


def _read_inline(token: Token, name: str, line: int) -> Iterator[Command]:
    for child in token.children or ():
        is_named = child.type == "code_inline" and f"{child.content} ".startswith(NAMED)
        if is_named and not _SAYS.match(child.content):
            yield Command(name, line, child.content, is_inline=True)


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words)
