"""`python -m research.natural --out FOLDER`: train `pocket/natural` on one GPU, measure it and write its card."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path

from mgap.io.progress import bars
from mgap.pocket import smollm2
from mgap.pocket.figures import measure
from research.card import write_card
from research.natural.checkpoints import load_trained
from research.natural.recipe import NaturalRecipe, train
from research.stories import story_of


def main() -> None:
    parser = argparse.ArgumentParser(description="Train pocket/natural: SmolLM2 learns to read pictures, on honest rows.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--language-model", type=Path, help="SmolLM2's GGUF file; by default it is fetched")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=14, help="processes that make text rows")
    numbers = {field.name: type(field.default) for field in fields(NaturalRecipe) if isinstance(field.default, int | float)}
    for name, kind in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"by default {getattr(NaturalRecipe, name)}")
    parser.add_argument(
        "--card", action=argparse.BooleanOptionalAction, default=True, help="measure the model and write its card and figures"
    )
    args = parser.parse_args()
    recipe = replace(NaturalRecipe(), **{name: value for name in numbers if (value := getattr(args, name)) is not None})
    language_model = args.language_model or smollm2.fetch()
    train(language_model, args.out, recipe, device=args.device, workers=args.workers)
    if args.card:
        model = load_trained(str(args.out), language_model, device=args.device)
        with bars() as progress:
            figures = measure(model, nulls=story_of("pocket/natural").nulls, batch_size=256, progress=progress)
        write_card(args.out, "natural", figures)
    print(f"{args.out}: saved")


if __name__ == "__main__":
    main()
