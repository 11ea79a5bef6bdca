"""How much faster questions are answered in batches and with a shared prefill, all from one run.

    python bench/prefill.py --model pocket/llava --questions 3000

Pocket-POPE questions, sorted by picture, are answered in three ways, a chunk at a time and in turns, so that the machine's
other load affects all of them alike:

    one by one  transformers' own processor and generate, one question per call
    own         model.answers in batches
    shared      model.answers in batches, with prefill="shared"

Drawing the pictures is not counted; preparing them, tokenising prompts and decoding answers is. Batches prepare a picture once
for all its questions, as `mgap run` does. Answers are compared token by token, in float32 and in the checkpoint's precision.
bench/pope.py does the same with files, at the sizes of real models.
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
from mgap.pocket.benchmark import QUESTIONS_PER_SCENE, TEST, pope
from mgap.pocket.samples import name_of
from mgap.pocket.scenes import render
from mgap.run.picture_workers import PictureOpening, Pictures

Answers = list[tuple[int, ...]]  # token ids of each answer, including EOS
Way = Callable[[Sequence[str], Sequence[str]], Answers]  # from names of pictures and questions, row by row


def one_by_one(model: mgap.Model, new: int, show: Callable[[str], ImageSource]) -> Way:
    """The loop that one writes without this package."""
    plain, processor = model.backbone.model, model.backbone.processor

    def answer(name: str, question: str) -> tuple[int, ...]:
        content = [{"type": "image", "image": open_image(show(name))}, {"type": "text", "text": question}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        ).to(plain.device)
        with torch.no_grad():
            output = plain.generate(**inputs, do_sample=False, max_new_tokens=new)
        tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
        processor.decode(tokens, skip_special_tokens=True)
        return tuple(tokens)

    return lambda names, questions: [answer(*row) for row in zip(names, questions, strict=True)]


def in_batches(model: mgap.Model, new: int, batch_size: int, prefill: str, pictures: Pictures, **options: Any) -> Way:
    """Batches, as in `mgap run`; workers of `pictures` start when a chunk does."""

    def answer(names: Sequence[str], questions: Sequence[str]) -> Answers:
        pictures.held.clear()
        with model.backbone.clock.stage(STARTING):
            pictures.prefetch(names)
        tokens = []
        for start in range(0, len(names), batch_size):
            rows = slice(start, start + batch_size)
            with model.backbone.clock.stage(WAITING):
                taken = pictures.take(names[rows])
            images = [taken[name].picture for name in names[rows]]
            answers = model.answers(
                images, questions[rows], batch_size=batch_size, prefill=prefill, max_new_tokens=new, **options
            )
            tokens += [answer.token_ids for answer in answers]
        return tokens

    return answer


def measure(ways: dict[str, Way], names: list[str], questions: list[str], chunk: int, label: str) -> dict[str, Any]:
    """By way: milliseconds per question of every chunk ("spent"), and all answers ("tokens")."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    tokens: dict[str, Answers] = {name: [] for name in ways}
    for way in ways.values():
        way(names[:QUESTIONS_PER_SCENE], questions[:QUESTIONS_PER_SCENE])  # warm up
    for number, start in enumerate(range(0, len(questions), chunk)):
        rows = slice(start, start + chunk)
        order = list(ways)
        for way_name in order[number % len(order) :] + order[: number % len(order)]:
            started = time.perf_counter()
            tokens[way_name] += ways[way_name](names[rows], questions[rows])
            spent[way_name].append(1000 * (time.perf_counter() - started) / len(questions[rows]))
        done = min(start + chunk, len(questions))
        print(f"\r{label}: {done} of {len(questions)} questions", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {"spent": spent, "tokens": tokens}


def table(results: dict[str, Any], chunk: int) -> list[str]:
    """A Markdown table: total seconds, the median chunk with its quartiles, and the speed-up over one by one."""
    lines = [
        "| way | all, s | ms a question: median (quartiles) | times as fast: all (quartiles of chunks) | answers that differ |",
        "|---|---|---|---|---|",
    ]
    base, plain = results["spent"]["one by one"], results["tokens"]["one by one"]
    sizes = [len(plain[start : start + chunk]) for start in range(0, len(plain), chunk)]
    for name, spent in results["spent"].items():
        total, base_total = (sum(ms * n for ms, n in zip(times, sizes, strict=True)) / 1000 for times in (spent, base))
        low, middle, high = spread(spent)
        slow, _, fast = spread([b / s for b, s in zip(base, spent, strict=True)])
        differing = sum(mine != theirs for mine, theirs in zip(results["tokens"][name], plain, strict=True))
        lines.append(
            f"| {name} | {total:.1f} | {middle:.1f} ({low:.1f} to {high:.1f}) "
            f"| {base_total / total:.2f}x ({slow:.2f} to {fast:.2f}) | {differing} of {len(plain)} |"
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
    args = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    try:
        run(args)
    finally:
        torch.set_num_threads(before)


def run(args: argparse.Namespace) -> None:
    items = list(islice(pope(args.split, TEST, math.ceil(args.questions / QUESTIONS_PER_SCENE)), args.questions))
    album: dict[str, Image.Image] = {}
    for scene in {question.scene.seed: question.scene for question in items}.values():
        album[name_of(scene)] = render(scene)
        print(
            f"\rdrawing: {len(album)} of {math.ceil(len(items) / QUESTIONS_PER_SCENE)} pictures",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    names, questions = [name_of(q.scene) for q in items], [q.text for q in items]
    chunk = 2 * args.batch_size
    print(f"{args.model}, {len(questions)} questions about {len(album)} pictures, batches of {args.batch_size}, ", end="")
    print(f"chunks of {chunk}, {args.threads} threads; torch {torch.__version__}, ", end="")
    print(f"transformers {transformers.__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    for dtype in args.dtypes:
        model = mgap.load(args.model, device="cpu", dtype=dtype)
        kind = str(model.backbone.model.dtype).removeprefix("torch.")
        new, opening = args.max_new_tokens, PictureOpening(album.__getitem__, Preparer.of(model.backbone))
        pictures = Pictures(opening, 0, model.backbone.device)
        ways = {
            "one by one": one_by_one(model, new, album.__getitem__),
            "own": in_batches(model, new, args.batch_size, "own", pictures),
            "shared": in_batches(model, new, args.batch_size, "shared", pictures),
        }
        results = measure(ways, names, questions, chunk, kind)
        print(f"\n{kind}\n\n" + "\n".join(table(results, chunk)), flush=True)


if __name__ == "__main__":
    main()
