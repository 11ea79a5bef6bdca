"""`mgap demo`: the whole way from a model to a corrected answer, on a model that fits anywhere."""

from __future__ import annotations

import tempfile
from typing import Annotated

import typer

from mgap.cli.options import fit_default_prior


def demo(
    family: Annotated[str, typer.Option(help="llava or qwen3-vl.")] = "llava",
    alpha: Annotated[float, typer.Option(help="Strength of MGAP.")] = 0.75,
) -> None:
    """Build a tiny random model, learn its prior, and answer plainly and with MGAP."""
    from PIL import Image, ImageDraw
    from transformers.utils import logging

    from mgap.cli.ask import print_trace
    from mgap.decoding.model import load
    from mgap.methods.mgap import MGAP
    from mgap.pocket.tiny import build_tiny

    question = "Is there a dog in the image?"
    picture = Image.new("RGB", (96, 96), "skyblue")
    ImageDraw.Draw(picture).ellipse((28, 28, 68, 68), fill="orange")
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        build_tiny(family, folder)
        model = load(folder, device="cpu")
    print(f"A {family} of {sum(p.numel() for p in model.backbone.model.parameters()):,} RANDOM weights: its answers are")
    print("noise, and only show that every part runs. Name a real model to get sense: mgap ask --model ...\n")
    prior = fit_default_prior(model)
    print(
        f"prior: rank {prior.rank} of {prior.hidden_size}, {100 * prior.explained_variance:.0f}% of the blind states' variance"
    )
    print(f"asked: {question}")
    print(f"plain: {model.answer(picture, question, max_new_tokens=6).text!r}")
    with model.using(MGAP(prior, alpha=alpha)):
        answer = model.answer(picture, question, max_new_tokens=6, trace=True)
    print(f"MGAP:  {answer.text!r}\n")
    print_trace(answer)
