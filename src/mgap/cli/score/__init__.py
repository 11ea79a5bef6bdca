"""`mgap score`: score answers without a model, from a run's folder or from files in the published formats."""

from __future__ import annotations

from typing import Any

import typer

from mgap.cli.options import CommandGroup
from mgap.cli.score import amber, chair, hallusionbench, implied, mme, pope, run

HELP = "Score answers without a model: a run's folder, or files in the published formats."


class _ScoreGroup(CommandGroup):
    """`mgap score FOLDER` is short for `mgap score run FOLDER`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


score = typer.Typer(
    cls=_ScoreGroup,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for module in (amber, chair, hallusionbench, implied, mme, pope, run):
    name = module.__name__.rpartition(".")[2]
    score.command(name)(getattr(module, name))
