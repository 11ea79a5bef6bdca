"""Whether the inspector's memory stays where it was while visitor after visitor asks it.

    python bench/soak_inspector.py --questions 2000 [--together 4] [--out runs/soak-inspector]

A real `mgap inspect` on the pocket model in a process of its own. Every question comes from a new visitor with a page of their
own, about a scene of their own; every tenth visitor closes the page in the middle of the answer, every tenth asks what is
refused. Resident memory, threads and open files of the server are read from /proc every so many questions. The pages that were
open last keep their answers in the server (100 of them), so the count begins when these are full.
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
from soak import PAGE, line
from visitors import Visitor, asking, caller

from mgap.inspector.server import SESSIONS
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.language import ask_colour

FIRST = DEVELOPMENT + 60_000
SCENES = 200
METHODS = ("vanilla", "mgap")


def look(pid: int) -> dict[str, float]:
    """What the server holds."""
    return {
        "resident_mib": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20,
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


async def visit(
    address: str, pid: int, questions: int, together: int, every: int
) -> tuple[list[dict[str, float]], Counter[str]]:
    """So many visitors, a few at a time; what the server held meanwhile, and how it ended for them."""
    shown = [(scene, ask_colour(scene.names[0])) for scene in scenes(FIRST, SCENES)]
    held, ended = list[dict[str, float]](), Counter[str]()
    async with caller(address) as client:
        event = await asking(client)

        async def one(number: int) -> str:
            scene, question = shown[number % SCENES]
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
            held.append({"questions": min(start + every, questions), **look(pid)})
            measure.say(f"{held[-1]['questions']:,.0f} of {questions:,} questions, {held[-1]['resident_mib']:.0f} MiB resident")
    measure.say("")
    return held, ended


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--together", type=int, default=4, help="visitors at a time")
    parser.add_argument("--every", type=int, default=50, help="questions from one look at the server to the next")
    parser.add_argument("--out", type=Path, help="folder for soak-inspector.json")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        words = ["inspect", "--port", "0", "--no-open", "--model", "pocket/llava", "--runs", folder, "--max-new-tokens", "16"]
        with log.open("wb") as file:
            server = subprocess.Popen([sys.executable, "-m", "mgap.cli.main", *words], stdout=file, stderr=file)
        try:
            address = wait_for(log, server)
            held, ended = asyncio.run(visit(address, server.pid, given.questions, given.together, given.every))
        finally:
            server.terminate()
            server.wait(20)
        failures = log.read_text(errors="replace").count("Traceback")
    kept = [each for each in held if each["questions"] >= 2 * SESSIONS]
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "soak-inspector.json").write_text(
            json.dumps({"about": measure.about("cpu"), "held": held, "ended": ended})
        )
    print(f"{measure.about('cpu')}: {dict(ended)}; {failures} tracebacks in the server's log\n")
    rows = []
    for name in ("resident_mib", "threads", "files"):
        grown = line([each["questions"] / 1000 for each in kept], [each[name] for each in kept])
        rows.append((name.replace("_", " "), *(f"{each[name]:.0f}" for each in (held[0], kept[0], kept[-1])), grown.text(2)))
    heads = ("", *(f"after {each['questions']:,.0f}" for each in (held[0], kept[0], kept[-1])))
    print(measure.table((*heads, "added for every 1000 questions (95%)"), rows))


if __name__ == "__main__":
    main()
