"""`mgap export`: write a checkpoint that decodes as a method does, for any engine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mgap.cli.options import CommandGroup, Device, Dtype, ModelName, Revision, Template, TrustRemoteCode, load_model

export = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@export.callback()
def _group() -> None:
    """Write a checkpoint that decodes as a method does, for any engine."""


@export.command()
def nullu(
    model: ModelName,
    space: Annotated[str, typer.Option(help="Folder or hub repository with a null space (`mgap fit --for nullu`).")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write; it must not exist.")],
    strength: Annotated[float, typer.Option(help="Share of each direction to take out, 0 to 1.")] = 1.0,
    start: Annotated[
        int | None, typer.Option(help="First block to change, from 0; default: the first of the null space.")
    ] = None,
    end: Annotated[
        int | None, typer.Option(help="The block after the last to change; default: the last of the null space.")
    ] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Project the weights that Nullu's hooks act on, and write an ordinary checkpoint with its processor and a card.

    Example: mgap export nullu --model llava-hf/llava-1.5-7b-hf --space spaces/llava --out llava-nullu
    """
    from mgap.methods.nullu import Nullu
    from mgap.methods.nullu_export import check_export
    from mgap.methods.nullu_export import export as write

    settings: dict[str, Any] = {"strength": strength, "start": start, "end": end}
    method = Nullu(space=space, **settings)
    check_export(method, out)
    write(load_model(model, device, dtype, revision, trust_remote_code, template), method, out)
    found, blocks = method.null_space, method.blocks
    print(f"{out}: rank {found.rank} out of blocks {blocks[0]} to {blocks[-1]} of {found.depth}, from {found.count} pairs")
