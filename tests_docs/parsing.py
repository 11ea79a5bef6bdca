"""Whether a command would be understood: its program's own parser reads it, and nothing is carried out."""

from __future__ import annotations

import argparse
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from copy import copy
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import typer
from reading import Command

from mgap.cli.main import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z][A-Z_]*(\.yaml)?")
LAUNCHERS = ("torchrun", "accelerate")
OURS = ("mgap", "research")
ELSEWHERE = ("lmms_eval",)  # modules of projects that are no dependency
_USAGE = typer.BadParameter.__mro__[1]  # the error of which it is a kind: unknown options, missing values


class NotUnderstood(Exception):
    """A command that its program refuses; the message is the program's."""


class Understood(Exception):
    """A script's parser has read its words, and the script goes no further."""


def parse(command: Command) -> None:
    """Every simple command of it: mgap's verbs, this project's scripts and modules, make, pip. Others are bash's business."""
    for words in command.simple:
        match words:
            case ["mgap", *rest]:
                parse_mgap(rest, is_whole=not command.is_inline)
            case ["make", *targets]:
                _parse_make(targets)
            case ["pip", "install", *wanted]:
                _parse_pip(wanted)
            case ["python", "-m", module, *rest]:
                _parse_module(module, rest)
            case ["python", script, *rest] if script.endswith(".py"):
                _parse_script(ROOT / script, rest)
            case [program, *rest] if program in LAUNCHERS and "mgap.cli.main" in rest:
                parse_mgap(rest[rest.index("mgap.cli.main") + 1 :], is_whole=not command.is_inline)
            case ["docker" | "kubectl", *rest]:
                _parse_files(rest)


def parse_mgap(given: list[str], *, is_whole: bool = True) -> None:
    """With the parser of `mgap` itself. In running text, where it is not whole, words may be left out or be placeholders."""
    command: Any = typer.main.get_command(app)
    words = given
    if not is_whole:
        words = [word for before, word in zip(["", *words], words, strict=False) if word != "..." or before.startswith("-")]
    name, context = "mgap", None
    try:
        while True:
            command = _harmless(command, is_whole=is_whole)
            if not is_whole and (not words or (hasattr(command, "commands") and PLACEHOLDER.fullmatch(words[0]))):
                return
            context = command.make_context(name, list(words), parent=context)
            if not hasattr(command, "commands"):
                return
            name, command, words = command.resolve_command(context, list(words))
    except typer.Exit:  # --help and its like
        return
    except _USAGE as error:
        is_placeholder = isinstance(error, typer.BadParameter) and any(map(PLACEHOLDER.fullmatch, words))
        if is_whole or not is_placeholder:
            raise NotUnderstood(f"mgap {' '.join(given)}: {error.format_message()}") from None


def _harmless(command: Any, *, is_whole: bool) -> Any:
    """A copy in which options that act as soon as they are read, such as --install-completion, end the reading instead.

    In running text nothing is required of it.
    """

    def end(_context: Any, _parameter: Any, value: Any) -> Any:
        if value:
            raise typer.Exit
        return value

    command = copy(command)
    command.params = [copy(parameter) for parameter in command.params]
    for parameter in command.params:
        if not parameter.expose_value or parameter.is_eager:
            parameter.callback = end
        parameter.required = parameter.required and is_whole
    return command


def _parse_make(targets: list[str]) -> None:
    told = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode:
        raise NotUnderstood(f"make {' '.join(targets)}: {told.stderr.strip()}")


def _parse_pip(wanted: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in wanted:
        named = re.fullmatch(r"(?:mgap|\.)\[(.*)\]", word)
        for extra in named[1].split(",") if named else ():
            if extra not in extras:
                raise NotUnderstood(f"pip install {word}: no extra {extra!r}; there are {', '.join(extras)}")


def _parse_module(module: str, words: list[str]) -> None:
    if module.partition(".")[0] in ELSEWHERE:
        return
    if find_spec(module) is None:
        raise NotUnderstood(f"python -m {module}: no such module")
    if module == "mgap.cli.main":
        parse_mgap(words)
    elif module.partition(".")[0] in OURS:
        with _stopping([module, *words]), catch_warnings():
            simplefilter("ignore", RuntimeWarning)  # it may have been imported for another page
            runpy.run_module(module, run_name="__main__")


def _parse_script(path: Path, words: list[str]) -> None:
    if not path.is_file():
        raise NotUnderstood(f"{path.relative_to(ROOT)}: no such file")
    if "argparse" not in path.read_text():
        return
    with _stopping([str(path), *words]):
        runpy.run_path(str(path), run_name="__main__")


@contextmanager
def _stopping(words: list[str]) -> Iterator[None]:
    """Within, a script starts as by its command, and ends as soon as its own parser has read the words."""
    kept, known, folders = argparse.ArgumentParser.parse_args, sys.argv, list(sys.path)

    def stop(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> None:
        kept(self, args, namespace)
        raise Understood

    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign, assignment]
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    told = StringIO()
    try:
        with redirect_stderr(told):
            yield
    except Understood:
        return
    except SystemExit:
        raise NotUnderstood(f"{' '.join(words)}: {told.getvalue().strip().splitlines()[-1]}") from None
    finally:
        argparse.ArgumentParser.parse_args, sys.argv, sys.path[:] = kept, known, folders  # type: ignore[method-assign]
    raise NotUnderstood(f"{words[0]}: it read no words")


def _parse_files(words: list[str]) -> None:
    for flag, name in pairwise(words):
        if flag == "-f" and not (ROOT / name).is_file():
            raise NotUnderstood(f"{name}: no such file")
