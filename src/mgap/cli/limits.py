"""Ends a command in a sentence where the machine gives no more: a full disk, a closed pipe, too few open files."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mgap.errors import MgapError

REASONS = {
    errno.ENOSPC: "no room is left on the disk that this command writes or prints to: make some",
    errno.EDQUOT: "no room is left in your share of the disk that this command writes or prints to: make some",
    errno.EFBIG: "a file would grow larger than this process may write: raise the limit (ulimit -f)",
    errno.EROFS: "the disk can only be read: name a folder on another",
    errno.EIO: "the disk does not answer as it should: look at it, or name a folder on another",
    errno.EMFILE: "too many files are open in this process: raise the limit (ulimit -n), or use fewer workers",
    errno.ENFILE: "too many files are open on this machine: close some, or use fewer workers",
}


def reason(error: OSError) -> str:
    """Why the machine gives no more, and what to do; "" for any other error."""
    said = REASONS.get(error.errno or 0, "")
    return f"{error.filename}: {said}" if said and error.filename else said


@contextmanager
def output() -> Iterator[None]:
    """Inside the block standard output takes any text. At its end all of it is written, or the command says that it is not.

    A reader that has seen enough, such as `head`, ends the command in silence, with the status of a program that SIGPIPE ended.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # else an answer that a terminal cannot show would be an error
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # typer's or rich's way to end
            _end_quietly()
        raise
    except BrokenPipeError:
        _end_quietly()
    except OSError as error:
        if said := reason(error):
            _drop_output()
            raise MgapError(said) from error
        raise


def _end_quietly() -> None:
    _drop_output()
    sys.exit(128 + signal.SIGPIPE)


def _drop_output() -> None:
    """Send what is still to be written nowhere: Python would try once more at its end, and complain."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
