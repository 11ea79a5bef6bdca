"""Train `pocket/natural` in two stages, on honest rows only.

See: the tower of `pocket/llava` and a new projector learn to give a picture token of a dog the embedding that SmolLM2 has for
the word dog. Look: adapters, projector and, gently, the tower learn to answer questions about the world as it is, on pictures
of every visibility. No label is invented. What cannot be seen is answered from experience, and that is the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from mgap.decoding.model import load
from mgap.pocket.corpus import NATURAL
from mgap.pocket.natural import ADAPTERS, build
from research.natural.adapters import adapt, trained_tensors
from research.training.compose import Painter
from research.training.recipe import GRID, Optimiser, PatchClassifier, load_batches, train_answers, train_vision
from research.training.students import LlavaStudent
from research.training.text import Batches, ExchangeTokenizer


@dataclass(frozen=True)
class NaturalRecipe:
    """Everything that determines the result."""

    rank: int = 8
    see_steps: int = 600
    see_batch: int = 512
    look_steps: int = 1000
    look_batch: int = 192
    peak: float = 1e-3  # learning rate of the projector and the adapters
    tower_seeing: float = 0.2  # of that, for the tower in the first stage
    tower_looking: float = 0.1  # and in the second
    noise: float = 0.35  # the strongest, as a share of full brightness
    seed: int = 0
    keep: tuple[int, ...] = (100, 250, 500)  # steps of the second stage after which a checkpoint is kept


def train(language_model: Path, out: Path, recipe: NaturalRecipe, *, device: str = "cuda", workers: int = 14) -> None:
    """Write the trained tensors to `out`, and those of the steps to keep to `out/step-N`."""
    torch.manual_seed(recipe.seed)
    model, processor = build(language_model)
    tower = load("pocket/llava", dtype="float32", device="cpu").backbone.model.model.vision_tower
    model.model.vision_tower.load_state_dict(tower.state_dict())
    model.to(device).train()
    adapters = adapt(model.model.language_model, recipe.rank)
    side, patch = model.config.vision_config.image_size, model.config.vision_config.patch_size
    student = LlavaStudent(model, processor, side, patch)
    tokenizer, painter = ExchangeTokenizer(model, processor, image_tokens=GRID * GRID), Painter(device, side)
    eye, projector = (list(module.parameters()) for module in student.vision_modules)
    classifier = PatchClassifier(student, tokenizer).to(device)
    learning = [weight for weight in classifier.parameters() if weight.requires_grad]  # not the embedding of words
    optimiser = Optimiser([([*projector, *learning], 1.0), (eye, recipe.tower_seeing)], recipe.see_steps, recipe.peak)
    train_vision(student, painter, classifier, recipe.see_batch, optimiser)

    def keep(step: int) -> None:
        if step in recipe.keep:
            save(model, out / f"step-{step}")

    batches = load_batches(Batches(NATURAL, tokenizer, recipe.look_batch, recipe.look_steps), workers)
    groups = [([*adapters, *projector], 1.0), (eye, recipe.tower_looking)]
    optimiser = Optimiser(groups, recipe.look_steps, recipe.peak, decay=0.0)
    train_answers("look", student, painter, batches, optimiser, noise=recipe.noise, after_step=keep)
    save(model, out)


def save(model: torch.nn.Module, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(trained_tensors(model), folder / ADAPTERS, metadata={"format": "pt"})
