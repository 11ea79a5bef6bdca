"""Progress bars of work in several stages, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, int, int], None]  # what is being done, how many are done, of how many


@contextmanager
def bars(*measures: Any) -> Iterator[Progress]:
    """One bar a label; where standard error is no terminal, they are printed once, at the end.

    `measures` are rich's columns after the bar; default: how many of how many, and the time so far.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    shows = measures or (MofNCompleteColumn(), TimeElapsedColumn())
    shown = Bars(TextColumn("{task.description}"), BarColumn(), *shows, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def report(label: str, done: int, total: int) -> None:
        if not tasks:
            shown.start()
        if label not in tasks:
            tasks[label] = shown.add_task(label, total=total)
        shown.update(tasks[label], completed=done)

    try:
        yield report
    finally:
        if tasks:  # else there was nothing to tell, not even an empty line
            shown.stop()
