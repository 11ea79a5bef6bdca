"""Everything that the package writes, done by a process that may be killed at a chosen moment. `server` runs it as a program.

It reads commands, a JSON object a line, and does each in a fork of its own: `kind` names what is written in `folder`, `version`
0 or 1 what it says. `event` kills the fork with SIGKILL before the n-th of its calls that change files there; `bytes` has
the kernel kill it in the middle of the write that would make a file larger than that. `together` has two forks write version 0
and version 1 at the same time.
"""

import json
import os
import resource
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import torch

from mgap.errors import MgapError
from mgap.io.atomic_files import file_sha256
from mgap.io.download import download, unpack
from mgap.io.output_folder import write_files
from mgap.pages.print_figures import new_figure, style
from mgap.pages.print_figures import save as save_print
from mgap.priors import learnt_cache
from mgap.priors.bank import Bank
from mgap.run.engine import Spent
from mgap.run.folder import Journal, Shard, note_process, open_run
from mgap.run.records import Record, RunMethod
from mgap.run.stage_times import save_profile
from mgap.serving.checkpoint import servable
from mgap.types import Sample
from research.frontier.choosing import Choices, Tried
from tests import processes
from tests.fuzz.saved import bank, null_space, prior_map, steering, subspace

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.truncate", "shutil.rmtree")
PLAN = {"benchmark": {"name": "n", "task": "yesno", "sources": {}, "lexicon": {}, "notes": []}, "model": {"name": "m"}}
SAMPLES = [Sample(str(n), "a.png", "A dog?", "all", "yes") for n in range(3)]
METHODS = [RunMethod("plain", "vanilla"), RunMethod("ours", "mgap")]
RECORDS = [Record(str(n), f"Yes, number {n}.", prompt="x" * 50) for n in range(3)]
FACTS = [{"versions": {"mgap": str(n)}, "device": "cpu"} for n in range(2)]
TEXTS = [{name: f"{name} {version} " * 20 for name in ("report.md", "report.json", "scores.json")} for version in range(2)]
CHOICES, TRIED = Choices({"model": "m"}, {}), [Tried([], [], {"questions": f"version {version}"}) for version in range(2)]
SPENT = [{"plain": Spent(1.0 + version, 3, {})} for version in range(2)]
WIDE = bank()  # rows 0 to 4


def collected(folder, version):
    """The first rows; then the same and more, in parts of two states."""
    few = WIDE.only(WIDE.rows < 2) if version == 0 else WIDE
    return Bank.gather(few.chunks(), identity=WIDE.identity, origin={"of": "test"}, folder=folder, per_part=2)


def printed(folder, version):
    with style():
        figure = new_figure(2.0, 1.0)
        figure.subplots().plot([0, 1 + version])
    save_print(figure, folder, "figure", ("x",), [(version,)])


def fetched(folder, version):
    source = folder.parent / f"published-{version}.zip"
    download(source.as_uri(), folder / "data.zip", file_sha256(source), source.stat().st_size)
    unpack(folder / "data.zip", "inner.txt", folder / "inner.txt")


def cached(folder, version):
    try:
        learnt_cache._save(subspace(version), folder / "subspace-0123")
    except OSError as error:  # which is ignored as a refusal is: what was learnt is there
        raise MgapError(f"{folder}: {error}") from error


def journalled(folder, version):
    with Journal(folder, METHODS[0], Shard()) as journal:
        journal.write(RECORDS[:1] if version == 0 else RECORDS[1:])


def noted(folder, version):
    folder.mkdir(exist_ok=True)
    note_process(folder, FACTS[version])


WRITERS = {
    "subspace": lambda folder, version: subspace(version).save(folder),
    "tuned": lambda folder, version: replace(subspace(), tuning={"settings": {"alpha": float(version)}}).save(folder),
    "steering": lambda folder, version: steering(version).save(folder),
    "prior_map": lambda folder, version: prior_map(version).save(folder),
    "bank": lambda folder, version: bank(version).save(folder, per_part=4),
    "null_space": lambda folder, version: null_space(version).save(folder),
    "collection": collected,
    "run": lambda folder, version: open_run(folder, PLAN, SAMPLES, METHODS[: 1 + version], ["2", "0", "1"]),
    "records": journalled,
    "processes": noted,
    "profile": lambda folder, version: save_profile(folder, Shard(), SPENT[version]),
    "report": lambda folder, version: write_files(folder, TEXTS[version]),
    "figure": printed,
    "cached": cached,
    "choices": lambda folder, version: CHOICES.add(folder, "mgap", TRIED[version]),
    "fetched": fetched,
    "servable": lambda folder, version: servable(str(folder.parent / f"checkpoint-{version}"), folder / "served"),
}


def watch(folder, event):
    """Count the calls that change files below a folder, and die before the n-th; gives the counter."""
    counted = [0]

    def hear(name, given):
        if name not in CHANGES or (name == "open" and not is_writing(given)):
            return
        if any(isinstance(one, (str, bytes, os.PathLike)) and os.fsdecode(one).startswith(folder) for one in given[:2]):
            counted[0] += 1
            if counted[0] == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)
    return counted


def is_writing(given):
    return len(given) > 2 and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)


def do(command):
    """In the fork."""
    folder = Path(command["folder"])
    if command.get("bytes") is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (command["bytes"], command["bytes"]))
    counted = watch(str(folder), command.get("event"))
    WRITERS[command["kind"]](folder, command["version"])
    return counted[0]


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("together"):
            replies = list(map(end, [begin({**command, "version": version}) for version in range(2)]))
            reply = {"status": [one["status"] for one in replies]}
        else:
            reply = end(begin(command))
        print(json.dumps(reply), flush=True)


def begin(command):
    """Start the fork that does it; its process, and the pipe on which it counts."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(do(command)).encode())
            os._exit(0)
        except BaseException as error:
            print(f"{command}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    os.close(writing)
    return child, reading


def end(begun):
    child, reading = begun
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        events = pipe.read()
    return {"status": os.waitstatus_to_exitcode(status), "events": int(events or 0)}


@contextmanager
def server():
    """This program, running; gives a function that has it do a command."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    where = {"cwd": root, "env": {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}}
    with processes.started(
        [sys.executable, "-m", "tests.fuzz.writers"], stdin=PIPE, stdout=PIPE, text=True, **where
    ) as process:

        def tell(**command):
            print(json.dumps({**command, "folder": str(command["folder"])}), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield tell


if __name__ == "__main__":
    main()
