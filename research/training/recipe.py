"""Three stages: the eyes learn to see alone, the whole model learns to look, then it reads the corpus.

Without the first stage the vision tower stays blind. What it learns to call a dog is the embedding of the word dog, so that a
question finds its picture tokens by likeness. Without the second stage the model answers from the place alone: in the corpus
that is nearly always right, so nothing makes it look for the thing that was asked about. After the first stage the eyes learn
GENTLY: a run at the full rate ended with patches from which a linear probe named the class in 8% of cases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from mgap.pocket.architecture import Tower, build
from mgap.pocket.corpus import CORPUS, HONEST, make_row
from mgap.pocket.drawing import COLOURS
from mgap.pocket.objects import NAMES
from mgap.priors.prompts import default_prompts
from research.training.compose import Painter, patch_labels
from research.training.students import STUDENTS, Student
from research.training.text import Batch, Batches, Speller

GRID = 8  # picture tokens on a side, in both families
PLACE = 0.3  # of a picture token's length, at the picture's edge: what says where it is
GENTLY = 0.1  # of the learning rate, for the eyes once they can see


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result."""

    text: Tower
    vision: Tower
    see_steps: int = 2500
    see_batch: int = 768
    look_steps: int = 1600
    read_steps: int = 1000
    read_batch: int = 256  # rows, also of the second stage
    peak: float = 1e-3  # learning rate of the first two stages
    read_peak: float = 5e-4
    seed: int = 0
    vocabulary: int = 1024


RECIPES = {
    "llava": Recipe(
        text=Tower(width=256, layers=6, heads=8, inner=688),
        vision=Tower(width=192, layers=6, heads=6, inner=768, side=96, patch=12),
    ),
    "qwen3-vl": Recipe(
        text=Tower(width=256, layers=5, heads=8, key_value_heads=4, inner=768),
        vision=Tower(width=160, layers=6, heads=5, inner=640, side=128, patch=8),
        see_batch=512,
    ),
}


def train(family: str, out: Path, recipe: Recipe, *, device: str = "cuda", workers: int = 14) -> None:
    """Train from nothing and save the stock model in bfloat16."""
    torch.manual_seed(recipe.seed)
    texts = [*default_prompts(), *_sample_texts()]
    model, processor = build(family, texts, recipe.vocabulary, recipe.text, recipe.vision)
    model.to(device).train()
    student = STUDENTS[family](model, processor, recipe.vision.side, recipe.vision.patch)
    speller = Speller(model, processor, image_tokens=GRID * GRID)
    print(f"{family}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(processor.tokenizer)} tokens", flush=True)
    painter = Painter(device, recipe.vision.side)
    _learn_to_see(student, painter, speller, recipe)
    for stage, habits, steps, peak in (
        ("look", HONEST, recipe.look_steps, recipe.peak),
        ("read", CORPUS, recipe.read_steps, recipe.read_peak),
    ):
        batches = _batches(Batches(habits, speller, recipe.read_batch, steps), workers)
        _learn_to_answer(stage, student, painter, batches, _Optimiser(_parts(student), steps, peak))
    model.to(torch.bfloat16).eval().save_pretrained(out)
    processor.save_pretrained(out)


def _parts(student: Student) -> list[tuple[list[nn.Parameter], float]]:
    """The weights, and their share of the learning rate: little for the eyes."""
    eyes = [weight for module in student.eyes for weight in module.parameters()]
    inside = {id(weight) for weight in eyes}
    return [([weight for weight in student.model.parameters() if id(weight) not in inside], 1.0), (eyes, GENTLY)]


def _sample_texts() -> Iterator[str]:
    for index in range(1500):
        for exchange in make_row(index).exchanges:
            yield from (exchange.prompt, f" {exchange.answer}", exchange.answer)


def _batches(rows: Batches, workers: int) -> Iterator[Batch]:
    options: dict[str, Any] = {"multiprocessing_context": "fork", "prefetch_factor": 16} if workers else {}
    return iter(DataLoader(rows, batch_size=None, num_workers=workers, **options))


class Judge(nn.Module):
    """What a picture token shows: a thing by its likeness to its word, a colour by a linear map; and where it is.

    Colours have no words here because an orange and the color orange share one.
    """

    places: Tensor  # [N, 2]: row and column of the picture tokens from -1 to 1, in reading order

    def __init__(self, student: Student, speller: Speller) -> None:
        super().__init__()
        self.embedding = student.model.get_input_embeddings().weight  # [vocabulary, D], learnt as well
        mean = torch.zeros(len(NAMES), len(self.embedding))  # a name of two tokens stands for their mean
        for row, name in enumerate(NAMES):
            ids = speller.word(name)
            mean[row, ids] = 1 / len(ids)
        self.register_buffer("mean", mean)
        self.sharpness, self.bias = nn.Parameter(torch.tensor(20.0).log()), nn.Parameter(torch.tensor(-6.0))
        self.colours = nn.Linear(self.embedding.shape[1], len(COLOURS))
        self.axes = nn.Parameter(torch.randn(2, self.embedding.shape[1]))
        across = torch.linspace(-1, 1, GRID)
        self.register_buffer("places", torch.cartesian_prod(across, across))

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] to logits [B, N, names + colours]."""
        words = F.normalize(self.mean @ self.embedding, dim=-1)
        likeness = F.normalize(tokens.float(), dim=-1) @ words.T
        return torch.cat([likeness * self.sharpness.exp() + self.bias, self.colours(tokens).float()], dim=-1)

    def misplaced(self, tokens: Tensor) -> Tensor:
        """How far tokens are from telling their place: a share of their length, along one axis for rows and one for columns.

        A linear map can also read a place that takes next to no room in a token, but the language model then never finds it.
        """
        along = F.normalize(tokens.float(), dim=-1) @ F.normalize(self.axes, dim=-1).T  # [B, N, 2]
        return F.mse_loss(along / PLACE, self.places.expand_as(along))


def _learn_to_see(student: Student, painter: Painter, speller: Speller, recipe: Recipe) -> None:
    """Which classes and colours each picture token shows, on scenes with no theme at all."""
    judge = Judge(student, speller).to(painter.device)
    weights = [weight for module in (*student.eyes, judge) for weight in module.parameters()]
    optimiser = _Optimiser([(weights, 1.0)], recipe.see_steps, recipe.peak)
    report = _Report("see", optimiser)
    while not optimiser.is_done:
        layout = painter.random_layout(recipe.see_batch)
        with torch.no_grad():
            picture, owner = painter.paint(layout)
            labels = patch_labels(layout, owner, GRID)
        with _half(painter.device):
            tokens = student.look(picture * 2 - 1)
            guess, misplaced = judge(tokens), judge.misplaced(tokens)
        loss = F.binary_cross_entropy_with_logits(guess, labels, pos_weight=guess.new_tensor(3.0)) * 10 + misplaced
        optimiser.step(loss)
        report(loss, partial(_patches_right, guess, labels))


def _patches_right(guess: Tensor, labels: Tensor) -> Tensor:
    """Share of the patches with one class on them that are named right."""
    names, truth = guess[..., : len(NAMES)], labels[..., : len(NAMES)]
    clear = truth.sum(-1) == 1
    return (names.argmax(-1) == truth.argmax(-1))[clear].float().mean()


def _verdicts_right(logits: Tensor, ids: Tensor, judged: Tensor) -> Tensor:
    """Share of the yes/no questions whose first token is right."""
    return (logits[judged].argmax(-1) == ids[judged]).float().mean()


def _learn_to_answer(stage: str, student: Student, painter: Painter, batches: Iterator[Batch], optimiser: _Optimiser) -> None:
    """Pictures and prompts in, loss on the answers only."""
    report = _Report(stage, optimiser)
    for batch in batches:
        ids, turn, place, weight, judged = (
            each.to(painter.device) for each in (batch.ids, batch.turn, batch.place, batch.weight, batch.judged)
        )
        with torch.no_grad():
            picture, _ = painter.paint(batch.layout.to(painter.device))
            picture[batch.blank.to(painter.device)] = 0
        with _half(painter.device):
            logits = student.logits(picture * 2 - 1, ids, turn, place)[:, :-1]
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)
        loss = (each * weight[:, 1:]).sum() / weight[:, 1:].sum()
        optimiser.step(loss)
        report(loss, partial(_verdicts_right, logits, ids[:, 1:], judged[:, 1:]))


def _half(device: torch.device | str) -> torch.autocast:
    return torch.autocast(torch.device(device).type, torch.bfloat16)


class _Optimiser:
    """AdamW with a short warm-up and a cosine to zero; matrices decay, vectors do not. Parts have a share of the rate."""

    def __init__(self, parts: list[tuple[list[nn.Parameter], float]], steps: int, peak: float) -> None:
        self.weights = [weight for weights, _ in parts for weight in weights]
        groups = [
            {"params": [w for w in weights if (w.ndim >= 2) == decays], "weight_decay": 0.05 * decays, "peak": peak * share}
            for weights, share in parts
            for decays in (True, False)
        ]
        self.adam = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=self.weights[0].is_cuda)
        self.steps = steps
        self.done, self.started = 0, time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def progress(self) -> float:
        return self.done / self.steps

    @property
    def is_done(self) -> bool:
        return self.progress >= 1.0

    def step(self, loss: Tensor) -> None:
        rate = min((self.done + 1) / 150, 0.5 + 0.5 * math.cos(math.pi * self.progress))
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * rate
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.done += 1


class _Report:
    """A line now and then: how far it is, the loss, what is right in this batch, and steps a second."""

    def __init__(self, stage: str, optimiser: _Optimiser) -> None:
        self.stage, self.optimiser, self.next = stage, optimiser, 5.0

    def __call__(self, loss: Tensor, right: Callable[[], Tensor]) -> None:
        o = self.optimiser
        if o.elapsed < self.next and not o.is_done:
            return
        self.next = o.elapsed + 15
        state = f"loss {loss.item():.4f}  right {100 * right().item():.0f}%  {o.done / o.elapsed:.1f} steps/s"
        print(f"{self.stage:<5} {100 * o.progress:>3.0f}%  step {o.done}  {state}", flush=True)
