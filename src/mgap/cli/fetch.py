"""`mgap fetch`: the published files of a benchmark."""

from __future__ import annotations

from typing import Annotated

import typer

from mgap.cli import completion


def fetch(
    benchmark: Annotated[str, typer.Argument(autocompletion=completion.published, help="pope, chair or amber.")],
    to: Annotated[str | None, typer.Option(help="Folder to write; default: $MGAP_CACHE or ~/.cache/mgap.")] = None,
) -> None:
    """Fetch a benchmark's questions and annotations from their own projects, checked byte for byte; never its pictures.

    Example: mgap fetch amber
    """
    from rich.progress import DownloadColumn, TimeRemainingColumn

    from mgap.benchmarks.published_files import fetch as fetch_files
    from mgap.benchmarks.published_files import published
    from mgap.io.progress import bars

    wanted = published(benchmark)
    with bars(DownloadColumn(), TimeRemainingColumn()) as report:
        folder = fetch_files(wanted, to, report)
    for file in wanted.files:
        for path in (file.path, *file.unpack):
            print(f"{path}  ({file.project}, {file.licence})")
    print(f"all in {folder}")
    for pictures in wanted.pictures:
        print(f"pictures, which you have to fetch yourself: {pictures}")
