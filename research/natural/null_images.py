"""`python -m research.natural.null_images`: which null image a prior should be fitted with, by a rule that needs no labels.

A prior is what a model says where it cannot know, so one might take the null image under which it is least sure: the one with
the highest mean entropy of yes against no over the calibration prompts. Beside it stands the best F1 that the card of the model
found with each null image, which takes labels. The two do not agree (docs/natural.md).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from mgap.backbones.null_images import NULL_IMAGES
from mgap.decoding.model import Model, load
from mgap.methods.bias import Bias
from mgap.pocket.benchmark import calibration_prompts
from mgap.pocket.figures import CardFigures
from mgap.pocket.scenes import SIDE
from mgap.registry import POCKET_MODELS

SIZE = (SIDE, SIDE)


@dataclass(frozen=True)
class Doubt:
    """A model's answers to the calibration prompts without a picture."""

    yes: float  # share of the answers
    entropy_nats: float  # of yes against no, on average; at most ln 2


def measure_doubt(model: Model, null_image: str) -> Doubt:
    """One forward for all prompts."""
    backbone = model.backbone
    up, down = (sorted(ids) for ids in Bias(shift=0.0).tokens(backbone.tokenizer))
    inputs = backbone.blind(calibration_prompts(), null_image, size=SIZE if null_image == "black_same_size" else None)
    with torch.no_grad():
        logits = backbone.model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1].float()
    yes = (logits[:, up].logsumexp(-1) - logits[:, down].logsumexp(-1)).sigmoid()
    return Doubt(float((yes > 0.5).float().mean()), float(torch.distributions.Bernoulli(yes).entropy().mean()))


def least_sure(doubts: dict[str, Doubt]) -> str:
    """The rule."""
    return max(doubts, key=lambda null: doubts[null].entropy_nats)


def table(models: list[str], device: str | None) -> str:
    lines = ["| model | null image | says yes | entropy, nats | best F1 of the card |", "|---|---|---|---|---|"]
    for name in models:
        model, choice = load(name, device=device, dtype="float32"), CardFigures.load(POCKET_MODELS[name]).choice
        doubts = {null: measure_doubt(model, null) for null in NULL_IMAGES}
        for null, doubt in doubts.items():
            best = max((trial.mean for trial in choice.trials if trial.null_image == null), default=None)
            mark = "**" if null == least_sure(doubts) else ""
            cells = (
                f"{100 * doubt.yes:.0f}%",
                f"{mark}{doubt.entropy_nats:.3f}{mark}",
                "" if best is None else f"{100 * best:.2f}",
            )
            lines.append(f"| {name} | `{null}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="How sure pocket models are of their answers to null images.")
    parser.add_argument("models", nargs="*", default=list(POCKET_MODELS), help=f"by default {', '.join(POCKET_MODELS)}")
    parser.add_argument("--device")
    args = parser.parse_args()
    print(table(args.models, args.device))


if __name__ == "__main__":
    main()
