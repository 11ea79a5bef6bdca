"""`mgap` and `python SCRIPT` without seconds of imports: a process that has imported much forks for each command that is typed.

    python warm.py serve SOCKET                     imports, says "ready", and waits
    python -SE warm.py call SOCKET PROGRAM WORDS    what stands for it on the PATH: the same words, folder, variables, terminal

The fork runs `mgap.cli.main.main`, as the installed command does, or the script as `__main__`. Gradio is not among what is
imported: it reads its variables then. README.md's commands are started without this.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

IMPORTED = (
    "fastapi",
    "matplotlib.pyplot",
    "nltk",
    "pandas",
    "uvicorn",
    "transformers.models.llava.modeling_llava",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "mgap.cli.main",
    "mgap.run.diagnose",
    "mgap.run.job",
    "mgap.tuning.tune",
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
    """Until standard input ends, as it does with the parent. Forks return a command's exit status and end as ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch
    _import()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(place)
        door.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
            link, _ = door.accept()
            if os.fork() == 0:
                door.close()
                return _watch(link)
            link.close()
    return 0


def _watch(link: socket.socket) -> int:
    """Fork once more for the command itself, so that its end, whatever it is, can be told."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, streams, _, _ = socket.recv_fds(link, LONGEST, STREAMS)
    worker = os.fork()
    if worker == 0:
        link.close()
        return _work(json.loads(told), streams)
    for each in streams:
        os.close(each)
    link.send(str(worker).encode())
    ended = os.pidfd_open(worker)
    ready, _, _ = select.select([link, ended], [], [])
    if ended not in ready:  # the caller has been killed: so is all of this session
        os.killpg(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    link.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def _work(told: dict, streams: list[int]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started with signals ignored
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["variables"])
    program, *words = told["words"]
    if program == "mgap":
        sys.argv = [program, *words]

        from mgap.cli.main import main

        main()
    else:
        path = Path(words[0]).absolute()
        sys.argv, sys.path[0] = words, str(path.parent)
        sys.modules["__main__"] = module = ModuleType("__main__")
        module.__file__ = str(path)
        exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    return 0


def _import() -> None:
    for name in IMPORTED:
        import_module(name)

    from mgap.registry import METHODS

    for name in METHODS.names():
        METHODS.get(name)
    gc.collect()
    gc.freeze()  # a fork that ends looks through what is its own, not through all that was imported


if __name__ == "__main__":
    verb, socket_path, *rest = sys.argv[1:]
    sys.exit(call(socket_path, rest) if verb == "call" else serve(socket_path))
