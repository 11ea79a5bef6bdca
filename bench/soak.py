"""Whether memory stays where it was in a process that answers for hours, and which kind of work it goes to if it does not.

    python bench/soak.py --out runs/soak [--model pocket/llava] [--questions N] [--minutes M]
    python bench/soak.py --from runs/soak/soak.json

A round does every kind of work of soak_work.py once, in an order of its own: answers one at a time, batches, streams that are
read and streams that are left, sampling, beams, static steps, every registered method entered and left, stacks, the user's own
generate, refusals and Ctrl-C in the middle; now and then it also fits, compiles, and loads another model and drops it. After
every kind what the process holds is counted: resident memory (/proc/self/statm, after a garbage collection), tensors and other
objects that the collector knows, hooks on the model, open files, threads. The first rounds warm up and do not count.

A line through the others says how much was added for every 1000 questions, with a 95% interval (Newey and West's: what is left
over one sample is left over the next one too). By kind it is the mean of what each call added; what is written down here after
each is one object of it. One question is asked in every
round, plainly and under MGAP: its answers must never change.

By default it asks as many questions as a 7B model answers in two hours on one H200 at the pace of docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import measure
import numpy as np
import torch
from soak_work import NEW, Work, hooks_of

import mgap
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.language import DESCRIBE
from mgap.pocket.scenes import render

ANSWER_MS = 133.5  # of a POPE question asked alone, LLaVA-1.5-7B on an H200: docs/performance.md, bench/pope.py
TWO_HOURS = round(7_200_000 / ANSWER_MS)
WARM = 4  # rounds that do not count
SELDOM = 4  # rounds from one compilation, fit and load to the next
COUNTED = ("resident_mib", "tensors", "tensor_mib", "objects", "hooks", "files", "threads")
PLAIN = (torch.Tensor, torch.nn.Parameter)  # the compiler keeps others, which have no memory behind them
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Holding:
    """What the process holds after some questions."""

    kind: str  # of the work that was done last
    round: int
    questions: int  # so far
    seconds: float
    resident_mib: float
    tensors: int
    tensor_mib: float
    objects: int
    hooks: int
    files: int
    threads: int


class Growth(NamedTuple):
    """For every 1000 questions, in a 95% interval."""

    low: float
    middle: float
    high: float

    def text(self, digits: int = 3) -> str:
        low, middle, high = (f"{round(value, digits) + 0.0:+.{digits}f}" for value in self)  # + 0.0: no minus before a zero
        return f"{middle} ({low} to {high})"


def look(model: mgap.Model, kind: str, number: int, questions: int, began: float) -> Holding:
    """Count, after everything that nobody holds is gone."""
    gc.collect()
    found = gc.get_objects()
    tensors = [each for each in found if issubclass(type(each), torch.Tensor)]
    plain = [each.untyped_storage() for each in tensors if type(each) in PLAIN]
    storages = {each.data_ptr(): each.nbytes() for each in plain}
    return Holding(
        kind=kind,
        round=number,
        questions=questions,
        seconds=time.perf_counter() - began,
        resident_mib=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20,
        tensors=len(tensors),
        tensor_mib=sum(storages.values()) / 2**20,
        objects=len(found),
        hooks=hooks_of(model),
        files=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
    )


def line(x: Sequence[float], y: Sequence[float]) -> Growth:
    """The slope of a least-squares line, with Newey and West's interval."""
    at, of = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(at) < 3:
        return Growth(-math.inf, math.nan, math.inf)
    centred = at - at.mean()
    slope = float(centred @ of / (centred @ centred))
    moment = centred * (of - of.mean() - slope * centred)
    lags = min(len(at) - 1, math.ceil(len(at) ** (1 / 3)))
    total = float(moment @ moment)
    total += sum(2 * (1 - lag / (lags + 1)) * float(moment[lag:] @ moment[:-lag]) for lag in range(1, lags + 1))
    half = 1.96 * math.sqrt(max(total, 0.0)) / float(centred @ centred)
    return Growth(slope - half, slope, slope + half)


def counted(held: Sequence[Holding]) -> list[Holding]:
    return [each for each in held if each.round >= WARM]


def overall(held: Sequence[Holding]) -> dict[str, Growth]:
    """Of each number, through the ends of the rounds that count."""
    kept = counted(held)
    ends = [each for each, after in zip(kept, [*kept[1:], None], strict=True) if after is None or after.round != each.round]
    questions = [each.questions / 1000 for each in ends]
    return {name: line(questions, [getattr(each, name) for each in ends]) for name in COUNTED}


def by_kind(held: Sequence[Holding]) -> dict[str, dict[str, Growth]]:
    """What calls of each kind added, for every 1000 questions of that kind."""
    added: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for before, after in itertools.pairwise(held):
        if after.round >= WARM:
            change = {name: getattr(after, name) - getattr(before, name) for name in COUNTED}
            added.setdefault(after.kind, []).append((after.questions - before.questions, change))
    return {kind: {name: _mean([(n, each[name]) for n, each in rows]) for name in COUNTED} for kind, rows in added.items()}


def _mean(rows: Sequence[tuple[int, float]]) -> Growth:
    """Added a call, as a rate."""
    values = np.array([value for _, value in rows])
    rate = 1000 * len(rows) / max(1, sum(n for n, _ in rows))
    half = 1.96 * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    middle = float(values.mean())
    return Growth((middle - half) * rate, middle * rate, (middle + half) * rate)


def soak(model_name: str, questions: int, minutes: float, seed: int, out: Path, without: Sequence[str] = ()) -> None:
    """Round after round, until so many questions were asked or the time is over; what was found is written after each."""
    model = mgap.load(model_name, device="cpu")
    gc.collect()
    gc.freeze()  # what was imported and loaded is not looked through again
    work, order = Work(model), random.Random(seed)
    (scene,) = scenes(DEVELOPMENT + 500, 1)
    shown = render(scene)
    began, asked, number, held, told = time.perf_counter(), 0, 0, list[Holding](), list[str]()
    while asked < questions and time.perf_counter() - began < 60 * minutes:
        due = work.kinds() | (work.seldom() if number % SELDOM == 0 else {})
        kinds = {name: kind for name, kind in due.items() if name not in without}
        for kind in order.sample(list(kinds), len(kinds)):
            asked += kinds[kind]()
            held.append(look(model, kind, number, asked, began))
        told.append(model.answer(shown, DESCRIBE[0], max_new_tokens=4 * NEW).text)
        with model.using(work.methods["mgap"]):
            told[-1] += " | " + model.answer(shown, DESCRIBE[0], max_new_tokens=4 * NEW).text
        asked += 2
        held.append(look(model, "the same question", number, asked, began))
        number += 1
        write(out, model_name, held, told)
        minute = (time.perf_counter() - began) / 60
        measure.say(f"{asked:,} of {questions:,} questions, {minute:.0f} min, {held[-1].resident_mib:.0f} MiB resident")
    measure.say("")


def write(out: Path, model_name: str, held: Sequence[Holding], told: Sequence[str]) -> None:
    changed = sum(text != told[0] for text in told)
    found = {"model": model_name, "about": measure.about("cpu"), "changed": changed, "held": [asdict(each) for each in held]}
    beside = out / "soak.json.part"
    beside.write_text(json.dumps(found))
    beside.replace(out / "soak.json")
    (out / "soak.md").write_text(told_as_tables(found))


def told_as_tables(found: dict[str, object]) -> str:
    """Markdown: all numbers over the whole run, and what each kind of work added."""
    held = [Holding(**each) for each in found["held"]]  # type: ignore[attr-defined]
    kept = counted(held)
    about = f"{found['model']}, {found['about']}: {held[-1].questions:,} questions in {held[-1].round + 1} rounds, "
    about += f"{held[-1].seconds / 60:.0f} min; {found['changed']} of the repeated answers changed."
    if not kept:
        return about + "\n\nAll of it was warm-up.\n"
    begun = held[held.index(kept[0]) - 1]
    rows = [
        (name.replace("_", " "), *(f"{getattr(each, name):.1f}".removesuffix(".0") for each in (begun, kept[-1])), grown.text())
        for name, grown in overall(held).items()
    ]
    heads = ("", f"after {begun.questions:,} questions", "at the end", "added for every 1000 questions (95%)")
    shown = ("resident_mib", "tensors", "objects")
    parts = [
        (kind, each["resident_mib"].text(2), each["tensors"].text(1), each["objects"].text(0))
        for kind, each in sorted(by_kind(held).items(), key=lambda pair: -pair[1]["objects"].middle)
    ]
    kinds = ("kind of work, per 1000 of its own questions", *(name.replace("_", " ") for name in shown))
    return f"{about}\n\n{measure.table(heads, rows)}\n\n{measure.table(kinds, parts)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="what mgap.load reads")
    parser.add_argument("--questions", type=int, default=TWO_HOURS, help="two hours' worth at 7B: %(default)s")
    parser.add_argument("--minutes", type=float, default=math.inf, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of the order of work")
    parser.add_argument("--without", nargs="+", default=[], metavar="KIND", help="kinds of work to leave out, such as compiled")
    parser.add_argument("--out", type=Path, help="folder for soak.json and soak.md")
    parser.add_argument("--from", type=Path, dest="found", help="a soak.json: print its tables again")
    given = parser.parse_args(arguments)
    if given.found is not None:
        sys.stdout.write(told_as_tables(json.loads(given.found.read_text())))
        return
    if given.out is None:
        parser.error("--out says where results go")
    given.out.mkdir(parents=True, exist_ok=True)
    soak(given.model, given.questions, given.minutes, given.seed, given.out, given.without)
    sys.stdout.write((given.out / "soak.md").read_text())


if __name__ == "__main__":
    main()
