"""How much faster questions about pictures are answered in batches, and with a shared prefill; every figure from one run.

    python bench/prefill.py --model pocket/llava --questions 3000

Pocket-POPE questions, sorted by picture, are answered in three ways, a chunk at a time and in turns, so that whatever else the
machine does hits all of them alike:

    one by one  transformers' own processor and generate, a question a call
    own         model.answers in batches
    shared      model.answers in batches, with prefill="shared"

Drawing the pictures is not counted; preparing them, reading prompts and spelling answers is. In batches a picture is prepared
once for all its questions, as `mgap run` does. Answers are compared token by token, in float32 and in the checkpoint's own
precision. bench/pope.py does the same with files, at the sizes of real models.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
import transformers
from measure import spread
from PIL import Image

import mgap
from mgap.backbones.clock import STARTING, WAITING
from mgap.backbones.prepared_pictures import Preparer
from mgap.benchmarks.pope.questions import SPLITS
from mgap.io.images import ImageSource, open_image
from mgap.pocket.benchmark import ASKED, TEST, pope
from mgap.pocket.samples import name_of
from mgap.pocket.scenes import render
from mgap.run.picture_workers import PictureOpening, Pictures

Told = list[tuple[int, ...]]  # tokens of each answer, with the end
Way = Callable[[Sequence[str], Sequence[str]], Told]  # names of pictures and questions, row by row


class Album(dict[str, Image.Image]):
    """From a picture's name to the picture."""

    def __call__(self, name: str) -> Image.Image:
        return self[name]


def one_by_one(model: mgap.Model, new: int, show: Callable[[str], ImageSource]) -> Way:
    """What one writes without this package."""
    plain, processor = model.backbone.model, model.backbone.processor

    def answer(name: str, question: str) -> tuple[int, ...]:
        asked = [{"type": "image", "image": open_image(show(name))}, {"type": "text", "text": question}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": asked}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        ).to(plain.device)
        with torch.no_grad():
            made = plain.generate(**inputs, do_sample=False, max_new_tokens=new)
        tokens = made[0, inputs["input_ids"].shape[1] :].tolist()
        processor.decode(tokens, skip_special_tokens=True)
        return tuple(tokens)

    return lambda names, questions: [answer(*row) for row in zip(names, questions, strict=True)]


def in_batches(model: mgap.Model, new: int, batch_size: int, prefill: str, pictures: Pictures, **options: Any) -> Way:
    """What `mgap run` does; `pictures` may have workers, which begin when a chunk does."""

    def answer(names: Sequence[str], questions: Sequence[str]) -> Told:
        pictures.held.clear()
        with model.backbone.clock.stage(STARTING):
            pictures.expect(names)
        told = []
        for start in range(0, len(names), batch_size):
            rows = slice(start, start + batch_size)
            with model.backbone.clock.stage(WAITING):
                taken = pictures.take(names[rows])
            shown = [taken[name].picture for name in names[rows]]
            made = model.answers(shown, questions[rows], batch_size=batch_size, prefill=prefill, max_new_tokens=new, **options)
            told += [answer.token_ids for answer in made]
        return told

    return answer


def measure(ways: dict[str, Way], names: list[str], questions: list[str], chunk: int, label: str) -> dict[str, Any]:
    """Milliseconds a question of every chunk, and all answers, by way."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    told: dict[str, Told] = {name: [] for name in ways}
    for way in ways.values():
        way(names[:ASKED], questions[:ASKED])  # what is slow the first time only
    for number, start in enumerate(range(0, len(questions), chunk)):
        rows = slice(start, start + chunk)
        order = list(ways)
        for way_name in order[number % len(order) :] + order[: number % len(order)]:
            began = time.perf_counter()
            told[way_name] += ways[way_name](names[rows], questions[rows])
            spent[way_name].append(1000 * (time.perf_counter() - began) / len(questions[rows]))
        done = min(start + chunk, len(questions))
        print(f"\r{label}: {done} of {len(questions)} questions", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {"spent": spent, "told": told}


def table(found: dict[str, Any], chunk: int) -> list[str]:
    """A Markdown table: seconds in all, the median chunk with its quartiles, and how many times faster than one by one."""
    lines = [
        "| way | all, s | ms a question: median (quartiles) | times as fast: all (quartiles of chunks) | answers that differ |",
        "|---|---|---|---|---|",
    ]
    base, plain = found["spent"]["one by one"], found["told"]["one by one"]
    sizes = [len(plain[start : start + chunk]) for start in range(0, len(plain), chunk)]
    for name, spent in found["spent"].items():
        whole, most = (sum(ms * n for ms, n in zip(times, sizes, strict=True)) / 1000 for times in (spent, base))
        low, middle, high = spread(spent)
        slow, _, fast = spread([b / s for b, s in zip(base, spent, strict=True)])
        apart = sum(mine != theirs for mine, theirs in zip(found["told"][name], plain, strict=True))
        lines.append(
            f"| {name} | {whole:.1f} | {middle:.1f} ({low:.1f} to {high:.1f}) | {most / whole:.2f}x ({slow:.2f} to {fast:.2f}) "
            f"| {apart} of {len(plain)} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="what mgap.load reads")
    parser.add_argument("--questions", type=int, default=3000)
    parser.add_argument("--split", default="random", choices=SPLITS)
    parser.add_argument("--batch-size", type=int, default=60)
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["auto", "float32"], help='"auto" is the checkpoint\'s own precision')
    given = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(given.threads)
    try:
        run(given)
    finally:
        torch.set_num_threads(before)


def run(given: argparse.Namespace) -> None:
    asked = list(islice(pope(given.split, TEST, math.ceil(given.questions / ASKED)), given.questions))
    album = Album()
    for scene in {question.scene.seed: question.scene for question in asked}.values():
        album[name_of(scene)] = render(scene)
        print(f"\rdrawing: {len(album)} of {math.ceil(len(asked) / ASKED)} pictures", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    names, questions = [name_of(q.scene) for q in asked], [q.text for q in asked]
    chunk = 2 * given.batch_size
    print(f"{given.model}, {len(questions)} questions about {len(album)} pictures, batches of {given.batch_size}, ", end="")
    print(f"chunks of {chunk}, {given.threads} threads; torch {torch.__version__}, ", end="")
    print(f"transformers {transformers.__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    for dtype in given.dtypes:
        model = mgap.load(given.model, device="cpu", dtype=dtype)
        kind = str(model.backbone.model.dtype).removeprefix("torch.")
        new, pictures = (
            given.max_new_tokens,
            Pictures(PictureOpening(album, Preparer.of(model.backbone)), 0, model.backbone.device),
        )
        ways = {
            "one by one": one_by_one(model, new, album),
            "own": in_batches(model, new, given.batch_size, "own", pictures),
            "shared": in_batches(model, new, given.batch_size, "shared", pictures),
        }
        found = measure(ways, names, questions, chunk, kind)
        print(f"\n{kind}\n\n" + "\n".join(table(found, chunk)), flush=True)


if __name__ == "__main__":
    main()
