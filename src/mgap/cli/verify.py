"""`mgap verify`: compare the installed methods with reference vectors."""

from __future__ import annotations

from typing import Annotated

import typer


def verify(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            help="Folder with your own reference vectors (.npz, .json); default: those of the package.",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every array.")] = False,
) -> None:
    """Compare every installed method with reference vectors; exit status 1 if one is out of tolerance."""
    from mgap.verify.compare import verify_folder, verify_shipped

    failed = False
    for verdict in verify_shipped() if folder is None else verify_folder(folder):
        failed |= verdict.status == "failed"
        if verdict.status == "absent":
            print(f"absent  {verdict.file:<20} {verdict.method} is not in this version")
            continue
        outside = [d.name for d in verdict.differences if not d.within]
        note = verdict.problem or (f"out of tolerance: {', '.join(outside)}" if outside else "")
        count = f"{len(verdict.differences)} arrays, largest difference {verdict.largest:.1e}"
        print(f"{verdict.status:<7} {verdict.file:<20} {count}  {note}".rstrip())
        for d in verdict.differences if verbose else ():
            mark = "ok" if d.within else "OUT"
            print(f"        {mark:<4} {d.name:<34} {d.largest:.1e} (allowed {d.tolerance:.0e})")
    if failed:
        raise typer.Exit(1)
