"""`mgap`: runs the command, and turns every expected error into one sentence and exit status 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

import mgap
from mgap.cli.limits import output
from mgap.cli.options import CommandGroup, SeveralAtOnce
from mgap.cli.signals import ending_on_sigterm
from mgap.errors import MgapError, SettingError
from mgap.io.strict_json import is_unicode

VERBS = (
    "ask", "build", "demo", "diagnose", "doctor", "export", "fetch", "fit", "inspect", "ls", "push", "report", "run", "score",
    "serve", "tune", "verify",
)  # fmt: skip
SEVERAL = ("diagnose", "tune")  # take several values after one option


@cache
def _build(name: str) -> Any:
    verb = getattr(import_module(f"mgap.cli.{name}"), name)
    if not isinstance(verb, typer.Typer):  # otherwise it has subcommands
        function, verb = verb, typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        verb.command(name, cls=SeveralAtOnce if name in SEVERAL else None)(function)
    command = typer.main.get_command(verb)
    command.name = name
    return command


class _Verbs(Mapping[str, Any]):
    """Imports and builds a command when it is looked up, so that `mgap ask` does not wait for the others."""

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)

    def __getitem__(self, name: str) -> Any:
        if name not in VERBS:
            raise KeyError(name)
        return _build(name)


class _MainGroup(CommandGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": _Verbs()})

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(VERBS)


app = typer.Typer(
    cls=_MainGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`mgap --install-completion` sets up TAB completion of commands, options, methods and models in bash, zsh or fish.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mgap {mgap.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decode multimodal models against their language prior, so that they invent less about a picture."""


def main() -> None:
    warnings.showwarning = _show_warning
    try:
        with ending_on_sigterm(), output():
            _refuse_odd_bytes(sys.argv[1:])
            app(prog_name="mgap")
    except MgapError as error:
        print(f"mgap: {error}", file=sys.stderr)
        sys.exit(2)


def _refuse_odd_bytes(words: list[str]) -> None:
    for number, word in enumerate(words, start=1):
        if not is_unicode(word):
            raise SettingError(
                f"word {number} of the command, {word!r:.80}, is no UTF-8 text: type it in UTF-8, or rename the file"
            )


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"mgap: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
