"""The speed of a POPE run at the size of a real model with random weights: in batches, with shared prefills, with workers.

    python bench/pope.py --model llava-1.5-7b

Pictures are JPEG files of 640 x 480, with six questions each in POPE's wording. All answers have the same length. The ways take
turns, a chunk at a time:

    one by one          transformers' own processor and generate, one question per call; opens the picture for every question
    own                 batches; opens and prepares a picture once for all its questions
    shared              the same with prefill="shared"
    shared, N workers   the same with N processes that open and prepare pictures while the model is busy
    static              the same with a static cache and, on a GPU, a captured step (with --static)

Workers start before anything is timed, and start on a chunk when it begins. At the end every batched way answers all questions
once more and reports its time by stage. With random weights near ties are common: answers differ by rounding.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from prefill import Way, in_batches, measure, one_by_one, table

import mgap
from mgap.backbones.clock import Clock
from mgap.backbones.prepared_pictures import Preparer
from mgap.benchmarks.picture_folder import PictureFolder
from mgap.pocket.objects import NAMES
from mgap.run.engine import Spent
from mgap.run.picture_workers import MAX_AUTO, PictureOpening, Pictures
from mgap.run.stage_times import stages_table

SIZE = (640, 480)


def photographs(folder: str, count: int) -> list[str]:
    """Write smooth random pictures with a little grain, as large as files of photographs; returns their names."""
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize(SIZE, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2)), dtype=np.int16)
        grain = rng.integers(-12, 13, (SIZE[1], SIZE[0], 1))
        Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8)).save(Path(folder, f"{number}.jpg"), quality=90)
    return [f"{number}.jpg" for number in range(count)]


def ask(pictures: Sequence[str], each: int) -> tuple[list[str], list[str]]:
    """The picture's name and the question of every row."""
    names = [name for name in pictures for _ in range(each)]
    words = [NAMES[number % len(NAMES)] for number in range(len(names))]
    return names, [f"Is there {'an' if word[0] in 'aeiou' else 'a'} {word} in the image?" for word in words]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava-1.5-7b", help="a shape of bench/shapes.py")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pictures", type=int, default=40)
    parser.add_argument("--asked", type=int, default=6, help="questions a picture: 6 of one split, 18 of all three")
    parser.add_argument("--batch-size", type=int, default=60)
    parser.add_argument("--chunk", type=int, default=120, help="questions per turn of a way")
    parser.add_argument("--max-new-tokens", type=int, default=8)
    parser.add_argument("--workers", type=int, default=min(MAX_AUTO, max(1, (os.cpu_count() or 2) - 1)))
    parser.add_argument("--static", action="store_true", help="one way more: static_cache=True")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run(args, folder, stack)


def run(args: argparse.Namespace, folder: str, stack: ExitStack) -> None:
    from shapes import build  # late, because workers import this file too

    started = time.perf_counter()
    names, questions = ask(photographs(folder, args.pictures), args.asked)
    model = build(args.model, args.device)
    backbone, new, batch_size = model.backbone, args.max_new_tokens, args.batch_size
    opening = PictureOpening(PictureFolder(folder), Preparer.of(backbone))
    alone, helped = (stack.enter_context(Pictures(opening, count, backbone.device)) for count in (0, args.workers))
    last = f"shared, {args.workers} workers"
    ways = {
        "one by one": one_by_one(model, new, opening.picture),
        "own": in_batches(model, new, batch_size, "own", alone),
        "shared": in_batches(model, new, batch_size, "shared", alone),
        last: in_batches(model, new, batch_size, "shared", helped),
    }
    if args.static:
        last = f"static, {last}"
        ways[last] = in_batches(model, new, batch_size, "shared", helped, static_cache=True)
    for way in list(ways.values())[1:]:
        way(names[:batch_size], questions[:batch_size])  # a full batch allocates the device's memory; workers start
    print(f"ready after {time.perf_counter() - started:.0f} s", file=sys.stderr)
    results = measure(ways, names, questions, args.chunk, args.model)
    spent = {name: profile(model, ways[name], names, questions) for name in list(ways)[1:]}
    device = torch.cuda.get_device_name(backbone.device) if backbone.device.type == "cuda" else "CPU"
    print(f"{args.model}, {len(questions)} questions about {args.pictures} pictures, {new} tokens each, batches of ", end="")
    print(f"{batch_size}, chunks of {args.chunk}; {device}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; ", end="")
    print(f"all of it {time.perf_counter() - started:.0f} s\n")
    print("\n".join(table(results, args.chunk)))
    print("\n" + stages_table(spent), flush=True)


def profile(model: mgap.Model, way: Way, names: list[str], questions: list[str]) -> Spent:
    """Run a way once more, synchronizing the device at every change of stage."""
    clock = model.backbone.clock = Clock(model.backbone.device)
    started = time.perf_counter()
    way(names, questions)
    spent = Spent(len(names), time.perf_counter() - started, clock.take())
    model.backbone.clock = Clock()
    return spent


if __name__ == "__main__":
    main()
