"""`mgap demo`: what MGAP does, on a model and drawn pictures that come with the package."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from mgap.cli import completion
from mgap.cli.options import load_model
from mgap.io.strict_json import strict_json

if TYPE_CHECKING:
    from mgap.pages.html_page import Table


def demo(
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", autocompletion=completion.model, help="pocket/llava, pocket/qwen3-vl, pocket/natural, or a folder."
        ),
    ] = "pocket/llava",
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for the report.")] = "demo",
    questions: Annotated[int, typer.Option(help="Yes/no questions per split.")] = 300,
    captions: Annotated[int, typer.Option(help="Number of pictures to describe.")] = 40,
    alpha: Annotated[
        float | None, typer.Option(help="Strength of MGAP to show beside the paper's; default: the one chosen for the model.")
    ] = None,
) -> None:
    """Answer questions about drawn pictures with and without MGAP, measure both, and write a report.

    Example: mgap demo --model pocket/qwen3-vl --out demo
    """
    import torch

    from mgap.io.output_folder import check_folder, write_files
    from mgap.io.progress import bars
    from mgap.pocket.demo import DemoPlan, recorded_choice, run_demo, to_json
    from mgap.pocket.demo_page import caption_table, demo_page, pope_table

    started = time.perf_counter()
    plan = DemoPlan(model, questions, captions, alpha)
    check_folder(out, ("report.html", "results.json"))  # refuses mistakes before the weights are loaded
    if alpha is None:
        recorded_choice(model)
    torch.set_num_threads(1)  # on two idle cores 15 s instead of 11 s, on two busy ones 43 s instead of more than 150 s
    loaded = load_model(model, "cpu", "auto", None, False)
    with bars() as progress:
        done = run_demo(loaded, plan, began=started, progress=progress)
    page, facts = demo_page(done, out), strict_json(to_json(done), indent=1)
    report, results = write_files(out, {"report.html": page, "results.json": facts})
    count = done.pope["random"]["vanilla"].questions
    _print_table(f"Is it there? Pocket-POPE, {count} questions per split", pope_table(done), without=("Says yes", "Questions"))
    _print_table(f"Descriptions: pocket-CHAIR, {captions} captions", caption_table(done), without=("Captions",))
    print(f"report:  {report}  (open it in a browser)")
    print(f"results: {results}")
    print(f"took {time.perf_counter() - started:.0f} s")


def _print_table(title: str, content: Table, without: tuple[str, ...] = ()) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    shown = [number for number, column in enumerate(content.columns) if column not in without]
    drawn = Drawn(title=title, caption=content.caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    drawn.padding = (0, 1, 0, 0)
    for number in shown:
        drawn.add_column(content.columns[number], justify="right" if number else "left", no_wrap=number > 0)
    for group in content.groups:
        if group.heading:
            drawn.add_section()
            drawn.add_row(Text(group.heading, style="bold"))
        for row in group.rows:
            cells = [f"{cell.text}\n{cell.small}" if cell.small else cell.text for cell in row.cells]
            drawn.add_row(Text(row.heading), *(cells[number - 1] for number in shown[1:]))
    Console(width=None if sys.stdout.isatty() else 120).print(drawn)
