"""Ends a command early: Ctrl-C with status 130, SIGTERM with 143. Both clean up and print no traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(SystemExit):
    """This process got SIGTERM."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the block, as Ctrl-C does. Further ones are ignored: GNU's `timeout`, for one, sends two."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # not ours to handle
        return
    is_ending = False

    def end(*_: object) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_interrupt_ignored() -> bool:
    """Whether Ctrl-C does nothing, as in a process that a script started with `&`."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def way_to_end() -> str:
    """How the user can end this process."""
    return f"kill {os.getpid()}" if is_interrupt_ignored() else "Ctrl-C"


def tell_if_interrupt_is_ignored() -> None:
    """Tell the user of a long command how to end it if Ctrl-C is ignored."""
    if is_interrupt_ignored():
        print(f"mgap: Ctrl-C is ignored here; end this with: {way_to_end()}", file=sys.stderr, flush=True)
