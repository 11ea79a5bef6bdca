"""`mgap`: collects the verbs and turns every expected error into one sentence and exit status 2."""

from __future__ import annotations

import sys
import warnings

import typer

from mgap.cli import ask, demo, diagnose, doctor, fetch, fit, inspect, ls, report, run, serve, tune, verify
from mgap.cli.build import build
from mgap.cli.options import SeveralAtOnce
from mgap.cli.score import score
from mgap.errors import MgapError

app = typer.Typer(
    help="Fewer invented things about a picture: decode multimodal models against their language prior.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (ask, demo, diagnose, doctor, fetch, fit, inspect, ls, report, run, serve, tune, verify):
    name = verb.__name__.rpartition(".")[2]
    app.command(name, cls=SeveralAtOnce if verb in (diagnose, tune) else None)(getattr(verb, name))
app.add_typer(build, name="build")
app.add_typer(score, name="score")


def main() -> None:
    warnings.showwarning = _show_warning
    try:
        app()
    except MgapError as error:
        print(f"mgap: {error}", file=sys.stderr)
        sys.exit(2)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"mgap: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
