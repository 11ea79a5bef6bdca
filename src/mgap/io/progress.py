"""Progress bars for work in several stages, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, int, int], None]  # label, done, total


@contextmanager
def bars(*columns: Any) -> Iterator[Progress]:
    """Show one bar per label. If standard error is not a terminal, the bars are printed once, at the end.

    `columns` are rich columns after the bar; by default done/total and the elapsed time.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = columns or (MofNCompleteColumn(), TimeElapsedColumn())
    display = Bars(TextColumn("{task.description}"), BarColumn(), *columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def report(label: str, done: int, total: int) -> None:
        if not tasks:
            display.start()
        if label not in tasks:
            tasks[label] = display.add_task(label, total=total)
        display.update(tasks[label], completed=done)

    try:
        yield report
    finally:
        if tasks:  # otherwise there is nothing to show, not even an empty line
            display.stop()


def report_progress(progress: Progress | None, label: str, done: int, total: int) -> None:
    """Call the callback, if there is one."""
    if progress is not None:
        progress(label, done, total)
