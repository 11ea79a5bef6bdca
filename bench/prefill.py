"""How much faster questions about pictures are answered in batches, and with a shared prefill; every figure from one run.

    python bench/prefill.py --model pocket/llava --questions 3000

Pocket-POPE questions, sorted by picture, are answered in three ways, a chunk at a time and in turns, so that whatever else the
machine does hits all of them alike:

    one by one  transformers' own processor and generate, a question a call
    own         model.answers in batches
    shared      model.answers in batches, with prefill="shared"

Drawing the pictures is not counted; preparing them, reading prompts and spelling answers is. Answers are compared token by
token, in float32 and in the checkpoint's own precision.
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
from mgap.pocket.benchmark import ASKED, SPLITS, TEST, pope
from mgap.pocket.scenes import render

Told = list[tuple[int, ...]]  # tokens of each answer, with the end
Way = Callable[[Sequence[Image.Image], Sequence[str]], Told]


def one_by_one(model: mgap.Model, new: int) -> Way:
    """What one writes without this package."""
    plain, processor = model.backbone.model, model.backbone.processor

    def answer(picture: Image.Image, question: str) -> tuple[int, ...]:
        asked = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": asked}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            made = plain.generate(**inputs, do_sample=False, max_new_tokens=new)
        tokens = made[0, inputs["input_ids"].shape[1] :].tolist()
        processor.decode(tokens, skip_special_tokens=True)
        return tuple(tokens)

    return lambda pictures, questions: [answer(*row) for row in zip(pictures, questions, strict=True)]


def in_batches(model: mgap.Model, new: int, batch_size: int, prefill: str) -> Way:
    def answer(pictures: Sequence[Image.Image], questions: Sequence[str]) -> Told:
        made = model.answers(pictures, questions, batch_size=batch_size, prefill=prefill, max_new_tokens=new)
        return [told.token_ids for told in made]

    return answer


def measure(ways: dict[str, Way], pictures: list[Image.Image], questions: list[str], chunk: int, label: str) -> dict[str, Any]:
    """Milliseconds a question of every chunk, and all answers, by way."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    told: dict[str, Told] = {name: [] for name in ways}
    for way in ways.values():
        way(pictures[:ASKED], questions[:ASKED])  # what is slow the first time only
    for number, start in enumerate(range(0, len(questions), chunk)):
        rows = slice(start, start + chunk)
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            told[name] += ways[name](pictures[rows], questions[rows])
            spent[name].append(1000 * (time.perf_counter() - began) / len(questions[rows]))
        done = min(start + chunk, len(questions))
        print(f"\r{label}: {done} of {len(questions)} questions", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {"spent": spent, "told": told}


def table(found: dict[str, Any], sizes: list[int]) -> list[str]:
    """A Markdown table: seconds in all, the median chunk with its quartiles, and how many times faster than one by one."""
    lines = [
        "| way | all, s | ms a question: median (quartiles) | times as fast: all (quartiles of chunks) | answers that differ |",
        "|---|---|---|---|---|",
    ]
    base, plain = found["spent"]["one by one"], found["told"]["one by one"]
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
    drawn: dict[int, Image.Image] = {}
    for scene in {question.scene.seed: question.scene for question in asked}.values():
        drawn[scene.seed] = render(scene)
        print(f"\rdrawing: {len(drawn)} of {math.ceil(len(asked) / ASKED)} pictures", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    pictures, questions = [drawn[q.scene.seed] for q in asked], [q.text for q in asked]
    chunk = 2 * given.batch_size
    sizes = [len(questions[start : start + chunk]) for start in range(0, len(questions), chunk)]
    print(f"{given.model}, {len(questions)} questions about {len(drawn)} pictures, batches of {given.batch_size}, ", end="")
    print(f"chunks of {chunk}, {given.threads} threads; torch {torch.__version__}, ", end="")
    print(f"transformers {transformers.__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    for dtype in given.dtypes:
        model = mgap.load(given.model, device="cpu", dtype=dtype)
        kind = str(model.backbone.model.dtype).removeprefix("torch.")
        ways = {
            "one by one": one_by_one(model, given.max_new_tokens),
            "own": in_batches(model, given.max_new_tokens, given.batch_size, "own"),
            "shared": in_batches(model, given.max_new_tokens, given.batch_size, "shared"),
        }
        found = measure(ways, pictures, questions, chunk, kind)
        print(f"\n{kind}\n\n" + "\n".join(table(found, sizes)), flush=True)


if __name__ == "__main__":
    main()
