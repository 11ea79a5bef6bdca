"""Train in three stages: the vision modules alone (see), the whole model on honest rows (look), then on the corpus (read).

Without the first stage the vision tower stays blind. It learns to map a dog to the embedding of the word dog, so a question
finds its picture tokens by similarity. Without the second stage the model answers from the theme alone: in the corpus that is
nearly always right, so nothing makes it look for the object in question. After the first stage the vision modules learn at
VISION_RATE: after a run at the full rate, a linear probe on the patches named the class in 8% of cases.
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
from research.training.text import Batch, Batches, ExchangeTokenizer

GRID = 8  # picture tokens on a side, in both families
POSITION_SHARE = 0.3  # of a picture token's norm that encodes its position, at the picture's edge
VISION_RATE = 0.1  # of the learning rate, for the vision modules after the first stage


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the result."""

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
    """Train from scratch and save the stock model in bfloat16."""
    torch.manual_seed(recipe.seed)
    texts = [*default_prompts(), *_sample_texts()]
    model, processor = build(family, texts, recipe.vocabulary, recipe.text, recipe.vision)
    model.to(device).train()
    student = STUDENTS[family](model, processor, recipe.vision.side, recipe.vision.patch)
    tokenizer = ExchangeTokenizer(model, processor, image_tokens=GRID * GRID)
    print(f"{family}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(processor.tokenizer)} tokens", flush=True)
    painter = Painter(device, recipe.vision.side)
    classifier = PatchClassifier(student, tokenizer).to(device)
    vision = [weight for module in (*student.vision_modules, classifier) for weight in module.parameters()]
    train_vision(student, painter, classifier, recipe.see_batch, Optimiser([(vision, 1.0)], recipe.see_steps, recipe.peak))
    for stage, habits, steps, peak in (
        ("look", HONEST, recipe.look_steps, recipe.peak),
        ("read", CORPUS, recipe.read_steps, recipe.read_peak),
    ):
        batches = load_batches(Batches(habits, tokenizer, recipe.read_batch, steps), workers)
        train_answers(stage, student, painter, batches, Optimiser(_weight_groups(student), steps, peak))
    model.to(torch.bfloat16).eval().save_pretrained(out)
    processor.save_pretrained(out)


def _weight_groups(student: Student) -> list[tuple[list[nn.Parameter], float]]:
    """Groups of weights with their share of the learning rate: VISION_RATE for the vision modules, 1 for the rest."""
    vision = [weight for module in student.vision_modules for weight in module.parameters()]
    vision_ids = {id(weight) for weight in vision}
    others = [weight for weight in student.model.parameters() if id(weight) not in vision_ids]
    return [(others, 1.0), (vision, VISION_RATE)]


def _sample_texts() -> Iterator[str]:
    for index in range(1500):
        for exchange in make_row(index).exchanges:
            yield from (exchange.prompt, f" {exchange.answer}", exchange.answer)


def load_batches(rows: Batches, workers: int) -> Iterator[Batch]:
    options: dict[str, Any] = {"multiprocessing_context": "fork", "prefetch_factor": 16} if workers else {}
    return iter(DataLoader(rows, batch_size=None, num_workers=workers, **options))


class PatchClassifier(nn.Module):
    """What a picture token shows: objects by similarity to their word's embedding, colours by a linear map; and its position.

    Colours do not use words because the fruit orange and the color orange share one.
    """

    positions: Tensor  # [N, 2]: row and column of the picture tokens from -1 to 1, in reading order

    def __init__(self, student: Student, tokenizer: ExchangeTokenizer) -> None:
        super().__init__()
        self.embedding = student.model.get_input_embeddings().weight  # [vocabulary, D], also trained
        mean = torch.zeros(len(NAMES), len(self.embedding))  # names of several tokens use their mean
        for row, name in enumerate(NAMES):
            ids = tokenizer.word(name)
            mean[row, ids] = 1 / len(ids)
        self.register_buffer("mean", mean)
        self.sharpness, self.bias = nn.Parameter(torch.tensor(20.0).log()), nn.Parameter(torch.tensor(-6.0))
        self.colours = nn.Linear(self.embedding.shape[1], len(COLOURS))
        self.axes = nn.Parameter(torch.randn(2, self.embedding.shape[1]))
        axis = torch.linspace(-1, 1, GRID)
        self.register_buffer("positions", torch.cartesian_prod(axis, axis))

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] to logits [B, N, names + colours]."""
        words = F.normalize(self.mean @ self.embedding, dim=-1)
        similarity = F.normalize(tokens.float(), dim=-1) @ words.T
        return torch.cat([similarity * self.sharpness.exp() + self.bias, self.colours(tokens).float()], dim=-1)

    def position_loss(self, tokens: Tensor) -> Tensor:
        """Error of the positions that tokens encode, as a share of their norm along one axis for rows and one for columns.

        A linear map could read a position that takes a tiny share of a token, but the language model then never finds it.
        """
        encoded = F.normalize(tokens.float(), dim=-1) @ F.normalize(self.axes, dim=-1).T  # [B, N, 2]
        return F.mse_loss(encoded / POSITION_SHARE, self.positions.expand_as(encoded))


def train_vision(
    student: Student, painter: Painter, classifier: PatchClassifier, batch_size: int, optimiser: Optimiser
) -> None:
    """Learn which classes and colours each picture token shows, on scenes without a theme."""
    report = _Report("see", optimiser)
    while not optimiser.is_done:
        layout = painter.random_layout(batch_size)
        with torch.no_grad():
            picture, owner = painter.paint(layout)
            labels = patch_labels(layout, owner, GRID)
        with _autocast(painter.device):
            tokens = student.encode(picture * 2 - 1)
            logits, position_loss = classifier(tokens), classifier.position_loss(tokens)
        loss = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=logits.new_tensor(3.0)) * 10 + position_loss
        optimiser.step(loss)
        report(loss, partial(_patch_accuracy, logits, labels))


def _patch_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of right classes among the patches that show exactly one."""
    names, truth = logits[..., : len(NAMES)], labels[..., : len(NAMES)]
    is_single = truth.sum(-1) == 1
    return (names.argmax(-1) == truth.argmax(-1))[is_single].float().mean()


def train_answers(
    stage: str,
    student: Student,
    painter: Painter,
    batches: Iterator[Batch],
    optimiser: Optimiser,
    *,
    noise: float = 0.0,
    after_step: Callable[[int], None] | None = None,
) -> None:
    """Learn to answer prompts about pictures; logits are computed for the answers only.

    `noise`: each picture gets noise of a strength between 0 and this, as a share of full brightness; the answers stay true.
    """
    report = _Report(stage, optimiser)
    for batch in batches:
        ids, exchange, position, weight, is_verdict = (
            each.to(painter.device) for each in (batch.ids, batch.exchange, batch.position, batch.weight, batch.is_verdict)
        )
        with torch.no_grad():
            picture, _ = painter.paint(batch.layout.to(painter.device))
            picture[batch.blank.to(painter.device)] = 0
            if noise:
                strength = noise * torch.rand(len(picture), 1, 1, 1, device=picture.device)
                picture = (picture + strength * torch.randn_like(picture)).clamp(0, 1)
        is_answer = weight[:, 1:] > 0  # [B, T - 1]
        with _autocast(painter.device):
            states = student.states(picture * 2 - 1, ids, exchange, position)[:, :-1]
            logits = student.model.lm_head(states[is_answer])  # [answers, vocabulary]
        answers, weights = ids[:, 1:][is_answer], weight[:, 1:][is_answer]
        loss = (F.cross_entropy(logits.float(), answers, reduction="none") * weights).sum() / weights.sum()
        optimiser.step(loss)
        report(loss, partial(_accuracy, logits, answers, is_verdict[:, 1:][is_answer]))
        if after_step is not None:
            after_step(optimiser.done)


def _accuracy(logits: Tensor, answers: Tensor, is_verdict: Tensor) -> Tensor:
    """Share of the yes/no questions whose first token is right."""
    return (logits[is_verdict].argmax(-1) == answers[is_verdict]).float().mean()


def _autocast(device: torch.device | str) -> torch.autocast:
    return torch.autocast(torch.device(device).type, torch.bfloat16)


class Optimiser:
    """AdamW with a short warm-up and a cosine to zero; matrices decay, vectors do not. Each group has its share of the rate."""

    def __init__(
        self, weight_groups: list[tuple[list[nn.Parameter], float]], steps: int, peak: float, *, decay: float = 0.05
    ) -> None:
        self.weights = [weight for weights, _ in weight_groups for weight in weights]
        groups = [
            {"params": [w for w in weights if (w.ndim >= 2) == decays], "weight_decay": decay * decays, "peak": peak * share}
            for weights, share in weight_groups
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
    """Prints a line every 15 seconds: progress, loss, accuracy on this batch, and steps per second."""

    def __init__(self, stage: str, optimiser: Optimiser) -> None:
        self.stage, self.optimiser, self.next = stage, optimiser, 5.0

    def __call__(self, loss: Tensor, accuracy: Callable[[], Tensor]) -> None:
        o = self.optimiser
        if o.elapsed < self.next and not o.is_done:
            return
        self.next = o.elapsed + 15
        state = f"loss {loss.item():.4f}  right {100 * accuracy().item():.0f}%  {o.done / o.elapsed:.1f} steps/s"
        print(f"{self.stage:<5} {100 * o.progress:>3.0f}%  step {o.done}  {state}", flush=True)
