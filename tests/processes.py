"""Programs that tests start: each in a session of its own, gone with all that it started when its block is left.

    with processes.started([sys.executable, "-m", "mgap.cli.main", "inspect"], stderr=PIPE) as process:
        said = process.stderr.readline()

    done = processes.run([...], capture_output=True, text=True)   # as subprocess.run has it

A limit of time (pytest-timeout) interrupts a test wherever it waits, so that these blocks are left then too.
"""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any


def listen_to_signals() -> None:
    """Ctrl-C and SIGTERM end this process, and so those it starts, though a script's `&` has had them ignored.

    A signal that is ignored stays so in every program that is started; one with a handler, or with none, does not.
    """
    for number, normal in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, normal)


@contextmanager
def started(command: Sequence[Any], **how: Any) -> Iterator[subprocess.Popen]:
    """A program that is running. What is left of it at the end of the block is killed, and its pipes are closed."""
    process = subprocess.Popen(command, start_new_session=True, **how)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen) -> None:
    """Kill a program that was started in a session of its own, and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its group is there as long as one of them is
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def run(command: Sequence[Any], *, input=None, capture_output=False, check=False, **how: Any) -> subprocess.CompletedProcess:
    """A program, up to its end."""
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, stdin=subprocess.DEVNULL if input is None else subprocess.PIPE, **how) as process:
        out, err = process.communicate(input)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def workers_left() -> list[Any]:
    """Those of this process's own workers that do not end: torch sends a slow one SIGTERM, and does not wait for its end."""
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.join(60)
    return [worker for worker in workers if worker.is_alive()]
