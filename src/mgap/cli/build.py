"""`mgap build`: build a benchmark from your own pictures."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mgap.cli.options import CommandGroup

build = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@build.callback()
def _group() -> None:
    """Build a benchmark from pictures whose objects are known."""


@build.command()
def pope(
    annotations: Annotated[str, typer.Option(help='JSON array, or JSON lines: {"image": "a.jpg", "objects": ["car", ...]}.')],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write.")],
    per_image: Annotated[int, typer.Option(help="Questions with answer yes per picture, and as many with no.")] = 3,
    count: Annotated[int, typer.Option(help="Number of pictures, drawn from those with enough objects.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed for drawing pictures, and objects of the random split.")] = 0,
    name: Annotated[str, typer.Option(help="Files are called NAME_pope_SPLIT.json.")] = "own",
) -> None:
    """Write POPE's three splits, in the published format, for pictures whose objects are known.

    Example: mgap build pope --annotations annotations.jsonl --out pope --count 100
    """
    from mgap.benchmarks.pope.builder import build_pope, read_annotations, to_lines
    from mgap.errors import SettingError
    from mgap.io.output_folder import check_folder, write_files

    if not name or "/" in name or "_pope_" in name:
        raise SettingError(f"name={name!r} cannot begin the name of a file NAME_pope_SPLIT.json: write a plain word")
    pictures, notes = read_annotations(annotations)
    for note in notes:
        print(f"mgap: note: {note}", file=sys.stderr)
    built = build_pope(pictures, per_image=per_image, count=count, seed=seed)
    texts = {f"{name}_pope_{split}.json": to_lines(questions) for split, questions in built.items()}
    check_folder(out, texts)
    for path, questions in zip(write_files(out, texts), built.values(), strict=True):
        print(f"{path}: {len(questions)} questions about {count} pictures")
