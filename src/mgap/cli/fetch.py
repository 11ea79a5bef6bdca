"""`mgap fetch`: download the published files of a benchmark."""

from __future__ import annotations

from typing import Annotated

import typer

from mgap.cli import completion


def fetch(
    benchmark: Annotated[str, typer.Argument(autocompletion=completion.published, help="pope, chair or amber.")],
    to: Annotated[str | None, typer.Option(help="Folder to write to; default: $MGAP_CACHE or ~/.cache/mgap.")] = None,
) -> None:
    """Download a benchmark's questions and annotations from their own projects, with checksums; never its pictures.

    Example: mgap fetch amber
    """
    from rich.progress import DownloadColumn, TimeRemainingColumn

    from mgap.benchmarks.published_files import fetch as fetch_files
    from mgap.benchmarks.published_files import published
    from mgap.io.progress import bars

    files = published(benchmark)
    with bars(DownloadColumn(), TimeRemainingColumn()) as report:
        folder = fetch_files(files, to, report)
    for file in files.files:
        for path in (file.path, *file.unpack):
            print(f"{path}  ({file.project}, {file.licence})")
    print(f"all in {folder}")
    for pictures in files.pictures:
        print(f"pictures, to download yourself: {pictures}")
