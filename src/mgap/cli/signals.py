"""How a command ends before its time: by Ctrl-C with status 130, by SIGTERM with 143; both tidy up, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(SystemExit):
    """SIGTERM has asked this process to end."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the block, as Ctrl-C does. More of them change nothing: GNU's `timeout`, for one, sends two."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # somebody else decides
        return
    is_asked = False

    def end(*_: object) -> None:
        nonlocal is_asked
        if not is_asked:
            is_asked = True
            raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_interrupt_ignored() -> bool:
    """Whether Ctrl-C does nothing: a script's `&` starts a process so."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def way_to_end() -> str:
    """What to press or to type."""
    return f"kill {os.getpid()}" if is_interrupt_ignored() else "Ctrl-C"


def tell_if_interrupt_is_ignored() -> None:
    """For commands that take long."""
    if is_interrupt_ignored():
        print(f"mgap: Ctrl-C is ignored here; end this with: {way_to_end()}", file=sys.stderr, flush=True)
