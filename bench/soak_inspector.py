"""Whether the inspector leaks memory while many visitors ask questions.

    python bench/soak_inspector.py --questions 2000 [--together 4] [--out runs/soak-inspector]

A real `mgap inspect` runs on the pocket model in its own process. Every question comes from a new visitor with a new page and
scene. Every tenth visitor closes the page in the middle of the answer, and every tenth asks a question that is refused. The
server's resident memory, threads and open files are read from /proc at intervals. The server keeps the answers of the last 100
pages, so counting starts when these are full.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import measure
from inspector import wait_for
from soak import PAGE, fit_slope
from visitors import Visitor, ask_event, make_client

from mgap.inspector.server import SESSIONS
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.language import ask_colour

FIRST = DEVELOPMENT + 60_000
SCENES = 200
METHODS = ("vanilla", "mgap")


def take_snapshot(pid: int) -> dict[str, float]:
    """The resources of the server."""
    return {
        "resident_mib": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20,
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


async def visit(
    address: str, pid: int, questions: int, together: int, every: int
) -> tuple[list[dict[str, float]], Counter[str]]:
    """Send visitors, a few at a time; returns the server's resources over time and the outcomes."""
    questions_by_scene = [(scene, ask_colour(scene.names[0])) for scene in scenes(FIRST, SCENES)]
    snapshots, ended = list[dict[str, float]](), Counter[str]()
    async with make_client(address) as client:
        event = await ask_event(client)

        async def one(number: int) -> str:
            scene, question = questions_by_scene[number % SCENES]
            if number % 10 == 3:
                left = await Visitor(client, event, scene, question, METHODS).leave("process_generating")
                return "left" if "process_generating" in left.messages else "left before"
            if number % 10 == 7:
                refused = await Visitor(client, event, scene, " ", METHODS).ask()
                return "refused" if refused.error else "not refused"
            outcome = await Visitor(client, event, scene, question, METHODS).ask()
            return "answered" if outcome.answers else f"{outcome.status} {outcome.error}"

        for start in range(0, questions, every):
            for first in range(start, min(start + every, questions), together):
                ended.update(await asyncio.gather(*(one(number) for number in range(first, first + together))))
            await asyncio.sleep(1)
            done = min(start + every, questions)
            snapshots.append({"questions": done, **take_snapshot(pid)})
            measure.say(f"{done:,} of {questions:,} questions, {snapshots[-1]['resident_mib']:.0f} MiB resident")
    measure.say("")
    return snapshots, ended


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--together", type=int, default=4, help="visitors at a time")
    parser.add_argument("--every", type=int, default=50, help="questions between two snapshots of the server")
    parser.add_argument("--out", type=Path, help="folder for soak-inspector.json")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        words = ["inspect", "--port", "0", "--no-open", "--model", "pocket/llava", "--runs", folder, "--max-new-tokens", "16"]
        with log.open("wb") as file:
            server = subprocess.Popen([sys.executable, "-m", "mgap.cli.main", *words], stdout=file, stderr=file)
        try:
            address = wait_for(log, server)
            snapshots, ended = asyncio.run(visit(address, server.pid, args.questions, args.together, args.every))
        finally:
            server.terminate()
            server.wait(20)
        failures = log.read_text(errors="replace").count("Traceback")
    counted = [each for each in snapshots if each["questions"] >= 2 * SESSIONS]
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "soak-inspector.json").write_text(
            json.dumps({"about": measure.about("cpu"), "held": snapshots, "ended": ended})
        )
    print(f"{measure.about('cpu')}: {dict(ended)}; {failures} tracebacks in the server's log\n")
    rows = []
    for name in ("resident_mib", "threads", "files"):
        grown = fit_slope([each["questions"] / 1000 for each in counted], [each[name] for each in counted])
        rows.append(
            (name.replace("_", " "), *(f"{each[name]:.0f}" for each in (snapshots[0], counted[0], counted[-1])), grown.text(2))
        )
    heads = ("", *(f"after {each['questions']:,.0f}" for each in (snapshots[0], counted[0], counted[-1])))
    print(measure.table((*heads, "added for every 1000 questions (95%)"), rows))


if __name__ == "__main__":
    main()
