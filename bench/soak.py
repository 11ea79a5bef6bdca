"""Whether a process that answers for hours leaks memory, and in which kind of work.

    python bench/soak.py --out runs/soak [--model pocket/llava] [--questions N] [--minutes M]
    python bench/soak.py --from runs/soak/soak.json

A round does every kind of work of soak_work.py once, in random order: single answers, batches, streams that are read and
streams that are abandoned, sampling, beams, static steps, every registered method entered and left, stacks, the user's own
generate, refusals, and Ctrl-C in the middle. Some rounds also fit, compile, and load and drop another model. After every kind
it counts resident memory (/proc/self/statm, after a garbage collection), tensors and other objects known to the collector,
hooks on the model, open files, and threads. The first rounds warm up and do not count.

A line through the other rounds gives the growth per 1000 questions, with a 95% interval (Newey and West's, as successive
samples are correlated). By kind, it is the mean growth per call; one object of it is the snapshot stored here after each. One
question is asked in every round, plainly and under MGAP: its answers must never change.

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

ANSWER_MS = 133.5  # for a single POPE question, LLaVA-1.5-7B on an H200: docs/performance.md, bench/pope.py
TWO_HOURS = round(7_200_000 / ANSWER_MS)
WARM = 4  # rounds that do not count
SELDOM = 4  # rounds between two compilations, fits and loads
COUNTED = ("resident_mib", "tensors", "tensor_mib", "objects", "hooks", "files", "threads")
PLAIN = (torch.Tensor, torch.nn.Parameter)  # the compiler keeps other kinds, which own no memory
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Snapshot:
    """The resources of the process after some questions."""

    kind: str  # of the last work
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
    """Growth per 1000 questions, with a 95% interval."""

    low: float
    middle: float
    high: float

    def text(self, digits: int = 3) -> str:
        low, middle, high = (f"{round(value, digits) + 0.0:+.{digits}f}" for value in self)  # + 0.0: no minus before a zero
        return f"{middle} ({low} to {high})"


def take_snapshot(model: mgap.Model, kind: str, number: int, questions: int, started: float) -> Snapshot:
    """Count resources after a garbage collection."""
    gc.collect()
    objects = gc.get_objects()
    tensors = [each for each in objects if issubclass(type(each), torch.Tensor)]
    plain = [each.untyped_storage() for each in tensors if type(each) in PLAIN]
    storages = {each.data_ptr(): each.nbytes() for each in plain}
    return Snapshot(
        kind=kind,
        round=number,
        questions=questions,
        seconds=time.perf_counter() - started,
        resident_mib=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20,
        tensors=len(tensors),
        tensor_mib=sum(storages.values()) / 2**20,
        objects=len(objects),
        hooks=hooks_of(model),
        files=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
    )


def fit_slope(x: Sequence[float], y: Sequence[float]) -> Growth:
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


def after_warm_up(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    return [each for each in snapshots if each.round >= WARM]


def overall(snapshots: Sequence[Snapshot]) -> dict[str, Growth]:
    """The growth of each count, through the ends of the rounds that count."""
    counted = after_warm_up(snapshots)
    ends = [
        each for each, after in zip(counted, [*counted[1:], None], strict=True) if after is None or after.round != each.round
    ]
    questions = [each.questions / 1000 for each in ends]
    return {name: fit_slope(questions, [getattr(each, name) for each in ends]) for name in COUNTED}


def by_kind(snapshots: Sequence[Snapshot]) -> dict[str, dict[str, Growth]]:
    """The growth by kind of work, per 1000 questions of that kind."""
    added: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for before, after in itertools.pairwise(snapshots):
        if after.round >= WARM:
            change = {name: getattr(after, name) - getattr(before, name) for name in COUNTED}
            added.setdefault(after.kind, []).append((after.questions - before.questions, change))
    return {kind: {name: _mean([(n, each[name]) for n, each in rows]) for name in COUNTED} for kind, rows in added.items()}


def _mean(rows: Sequence[tuple[int, float]]) -> Growth:
    """Mean growth per call, as a rate per 1000 questions."""
    values = np.array([value for _, value in rows])
    rate = 1000 * len(rows) / max(1, sum(n for n, _ in rows))
    half = 1.96 * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    middle = float(values.mean())
    return Growth((middle - half) * rate, middle * rate, (middle + half) * rate)


def soak(model_name: str, questions: int, minutes: float, seed: int, out: Path, without: Sequence[str] = ()) -> None:
    """Run rounds until the questions or the time run out; results are written after each."""
    model = mgap.load(model_name, device="cpu")
    gc.collect()
    gc.freeze()  # the collector skips what was imported and loaded
    work, order = Work(model), random.Random(seed)
    (scene,) = scenes(DEVELOPMENT + 500, 1)
    picture = render(scene)
    started, done, number, snapshots, texts = time.perf_counter(), 0, 0, list[Snapshot](), list[str]()
    while done < questions and time.perf_counter() - started < 60 * minutes:
        due = work.kinds() | (work.seldom() if number % SELDOM == 0 else {})
        kinds = {name: kind for name, kind in due.items() if name not in without}
        for kind in order.sample(list(kinds), len(kinds)):
            done += kinds[kind]()
            snapshots.append(take_snapshot(model, kind, number, done, started))
        texts.append(model.answer(picture, DESCRIBE[0], max_new_tokens=4 * NEW).text)
        with model.using(work.methods["mgap"]):
            texts[-1] += " | " + model.answer(picture, DESCRIBE[0], max_new_tokens=4 * NEW).text
        done += 2
        snapshots.append(take_snapshot(model, "the same question", number, done, started))
        number += 1
        write(out, model_name, snapshots, texts)
        minute = (time.perf_counter() - started) / 60
        measure.say(f"{done:,} of {questions:,} questions, {minute:.0f} min, {snapshots[-1].resident_mib:.0f} MiB resident")
    measure.say("")


def write(out: Path, model_name: str, snapshots: Sequence[Snapshot], texts: Sequence[str]) -> None:
    changed = sum(text != texts[0] for text in texts)
    content = {
        "model": model_name,
        "about": measure.about("cpu"),
        "changed": changed,
        "held": [asdict(each) for each in snapshots],
    }
    temporary = out / "soak.json.part"
    temporary.write_text(json.dumps(content))
    temporary.replace(out / "soak.json")
    (out / "soak.md").write_text(format_tables(content))


def format_tables(content: dict[str, object]) -> str:
    """Markdown tables: all counts over the run, and the growth by kind of work."""
    snapshots = [Snapshot(**each) for each in content["held"]]  # type: ignore[attr-defined]
    counted = after_warm_up(snapshots)
    last = snapshots[-1]
    about = f"{content['model']}, {content['about']}: {last.questions:,} questions in {last.round + 1} rounds, "
    about += f"{last.seconds / 60:.0f} min; {content['changed']} of the repeated answers changed."
    if not counted:
        return about + "\n\nAll of it was warm-up.\n"
    first = snapshots[snapshots.index(counted[0]) - 1]
    rows = [
        (
            name.replace("_", " "),
            *(f"{getattr(each, name):.1f}".removesuffix(".0") for each in (first, counted[-1])),
            grown.text(),
        )
        for name, grown in overall(snapshots).items()
    ]
    heads = ("", f"after {first.questions:,} questions", "at the end", "added for every 1000 questions (95%)")
    names = ("resident_mib", "tensors", "objects")
    parts = [
        (kind, each["resident_mib"].text(2), each["tensors"].text(1), each["objects"].text(0))
        for kind, each in sorted(by_kind(snapshots).items(), key=lambda pair: -pair[1]["objects"].middle)
    ]
    kinds = ("kind of work, per 1000 of its own questions", *(name.replace("_", " ") for name in names))
    return f"{about}\n\n{measure.table(heads, rows)}\n\n{measure.table(kinds, parts)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="what mgap.load reads")
    parser.add_argument("--questions", type=int, default=TWO_HOURS, help="two hours' worth at 7B: %(default)s")
    parser.add_argument("--minutes", type=float, default=math.inf, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of the order of work")
    parser.add_argument("--without", nargs="+", default=[], metavar="KIND", help="kinds of work to leave out, such as compiled")
    parser.add_argument("--out", type=Path, help="folder for soak.json and soak.md")
    parser.add_argument("--from", type=Path, dest="source", help="a soak.json: print its tables again")
    args = parser.parse_args(arguments)
    if args.source is not None:
        sys.stdout.write(format_tables(json.loads(args.source.read_text())))
        return
    if args.out is None:
        parser.error("--out says where results go")
    args.out.mkdir(parents=True, exist_ok=True)
    soak(args.model, args.questions, args.minutes, args.seed, args.out, args.without)
    sys.stdout.write((args.out / "soak.md").read_text())


if __name__ == "__main__":
    main()
