"""`mgap` without its seconds of imports: a process that has imported everything forks for each command that is typed.

    python warm.py serve SOCKET             imports, says "ready", and waits
    python -SE warm.py call SOCKET WORDS    what stands for `mgap` on the PATH: the same words, folder, variables and terminal

The fork runs `mgap.cli.main.main`, as the installed command does. README.md's commands are started without this.
"""

import json
import os
import select
import signal
import socket
import sys
from importlib import import_module

IMPORTED = (
    "matplotlib.pyplot",
    "transformers.models.llava.modeling_llava",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "mgap.cli.main",
    "mgap.run.diagnosis",
    "mgap.run.job",
    "mgap.run.tuning",
)
STREAMS = 3  # standard input, output and error
LONGEST = 1 << 20  # bytes of a call


def call(place: str, words: list[str]) -> int:
    """Hand everything over, pass signals on, and end as the command ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(place)
        told = json.dumps({"words": words, "folder": os.getcwd(), "variables": dict(os.environ)})
        socket.send_fds(link, [told.encode()], range(STREAMS))
        worker = int(link.recv(64))
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda number, _: os.kill(worker, number))
        return int(link.recv(64) or b"1")


def serve(place: str) -> int:
    """Until the parent goes. Returns in forks only: with a command's exit status, for the interpreter to end with as ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch
    _import()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(place)
        door.listen()
        print("ready", flush=True)
        while True:
            link, _ = door.accept()
            if os.fork() == 0:
                door.close()
                return _watch(link)
            link.close()


def _watch(link: socket.socket) -> int:
    """Fork once more for the command itself, so that its end, whatever it is, can be told."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, streams, _, _ = socket.recv_fds(link, LONGEST, STREAMS)
    worker = os.fork()
    if worker == 0:
        link.close()
        return _work(json.loads(told), streams)
    for each in streams:
        os.close(each)
    link.send(str(worker).encode())
    while True:
        gone, status = os.waitpid(worker, os.WNOHANG)
        if gone:
            link.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
            os._exit(0)
        if select.select([link], [], [], 0.02)[0]:  # the caller has been killed
            os.kill(worker, signal.SIGKILL)


def _work(told: dict, streams: list[int]) -> int:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["variables"])
    sys.argv = ["mgap", *told["words"]]

    from mgap.cli.main import main

    main()
    return 0


def _import() -> None:
    for name in IMPORTED:
        import_module(name)

    from mgap.registry import METHODS

    for name in METHODS.names():
        METHODS.get(name)


if __name__ == "__main__":
    verb, socket_path, *rest = sys.argv[1:]
    sys.exit(call(socket_path, rest) if verb == "call" else serve(socket_path))
