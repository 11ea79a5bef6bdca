"""`python -m research.training llava --out FOLDER`: train a pocket model on one GPU, measure it and write its card."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from mgap.decoding.model import load
from mgap.io.progress import bars
from mgap.pocket.figures import measure
from research.card import write_card
from research.training.recipe import RECIPES, train


def main() -> None:
    parser = argparse.ArgumentParser(description="Retrain a pocket model from nothing.")
    parser.add_argument("family", choices=RECIPES)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=14, help="processes that make text rows")
    parser.add_argument("--see-steps", type=int, help="steps of the first stage; fewer for a trial")
    parser.add_argument("--look-steps", type=int, help="steps of the second stage; fewer for a trial")
    parser.add_argument("--read-steps", type=int, help="steps of the third stage; fewer for a trial")
    parser.add_argument("--see-batch", type=int)
    parser.add_argument("--read-batch", type=int)
    parser.add_argument(
        "--card", action=argparse.BooleanOptionalAction, default=True, help="measure the model and write its card and figures"
    )
    args = parser.parse_args()
    names = ("see_steps", "look_steps", "read_steps", "see_batch", "read_batch")
    recipe = replace(RECIPES[args.family], **{name: value for name in names if (value := getattr(args, name))})
    train(args.family, args.out, recipe, device=args.device, workers=args.workers)
    if args.card:
        with bars() as progress:
            figures = measure(load(str(args.out), device=args.device), batch_size=256, progress=progress)
        write_card(args.out, args.family, figures)
    print(f"{args.out}: saved")


if __name__ == "__main__":
    main()
