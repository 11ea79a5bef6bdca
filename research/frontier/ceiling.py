"""How well a linear probe of a state could answer: probes trained on the truth, layer by layer.

A method that moves the head's input and leaves the head alone answers yes where a linear function of the state it moves is
positive. A logistic regression trained on the labels of development scenes, which no method here gets, shows what each layer's
state at the last position of the prompt can give; hs[L] is the head's input. For comparison: plain decoding with the best
threshold on yes against no for the very questions that are scored, which is more than any choice can promise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from mgap.backbones.shared_vision import shared_pictures
from mgap.benchmarks.base import Benchmark
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.pope.scorer import tally_verdicts
from mgap.benchmarks.statistics import Rate
from mgap.benchmarks.tally import Tally, by_group
from mgap.decoding.model import Model
from mgap.io.progress import Progress, report_progress
from mgap.methods.bias import Bias
from mgap.pocket.benchmark import DEVELOPMENT, REPORT
from mgap.pocket.samples import pope_samples
from mgap.run.first_words import encode_rows
from mgap.types import Sample


@dataclass(frozen=True)
class Ceiling:
    """F1 by split."""

    probes: dict[str, dict[str, Rate]]  # by layer
    plain: dict[str, Rate]
    best_threshold: dict[str, Rate]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def layer_states(
    model: Model, benchmark: Benchmark, *, batch_size: int = 64, progress: Progress | None = None
) -> tuple[Tensor, Tensor]:
    """hs[0 .. L] at the last position [n, L + 1, d] in float32, and the plain logits [n, vocab]; both on the CPU."""
    states, logits = [], []
    rows = [(sample.image, sample.prompt) for sample in benchmark.samples]
    with torch.no_grad(), shared_pictures(model.backbone):
        for inputs, done in encode_rows(model, rows, benchmark.picture, batch_size):
            out = model.backbone.model(**inputs, output_hidden_states=True, use_cache=False, logits_to_keep=1)
            states.append(torch.stack([layer[:, -1].float().cpu() for layer in out.hidden_states], 1))
            logits.append(out.logits[:, -1].float().cpu())
            report_progress(progress, "questions for probes", done, len(rows))
    return torch.cat(states), torch.cat(logits)


def measure_ceiling(
    model: Model, scenes: int = 300, reported: int = 500, *, batch_size: int = 64, progress: Progress | None = None
) -> Ceiling:
    """Probes trained on all three splits of `scenes` development scenes, scored on `reported` others."""
    training, scoring = pope_samples(SPLITS, scenes, first=DEVELOPMENT), pope_samples(SPLITS, reported, first=REPORT)
    scored_questions = by_group(scoring.samples)
    training_states, _ = layer_states(model, training, batch_size=batch_size, progress=progress)
    states, logits = layer_states(model, scoring, batch_size=batch_size, progress=progress)
    labels = np.array([sample.truth == "yes" for sample in training.samples])
    spans = dict(zip(SPLITS, np.array_split(np.arange(len(scoring.samples)), len(SPLITS)), strict=True))

    def scored(yes: np.ndarray[Any, Any]) -> dict[str, Rate]:
        return {split: _tally(scored_questions[split], yes[spans[split]]).rates()["f1"] for split in SPLITS}

    probes = {}
    for layer in range(training_states.shape[1]):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=3000))
        probe.fit(training_states[:, layer].numpy(), labels)
        probes[str(layer)] = scored(probe.predict(states[:, layer].numpy()))
    up, down = (sorted(ids) for ids in Bias(shift=0.0).tokens(model.backbone.tokenizer))
    margins = (logits[:, up].amax(-1) - logits[:, down].amax(-1)).numpy()
    best = {split: _best_f1(scored_questions[split], margins[spans[split]]) for split in SPLITS}
    return Ceiling(probes, scored(margins > 0), best)


def _tally(questions: list[Sample], yes: np.ndarray[Any, Any]) -> Tally:
    verdicts = ["yes" if one else "no" for one in yes]
    return tally_verdicts(questions, verdicts, verdicts)


def _best_f1(questions: list[Sample], margins: np.ndarray[Any, Any]) -> Rate:
    """F1 at the best threshold for these questions."""
    order = np.argsort(-margins)
    labels = np.array([sample.truth == "yes" for sample in questions])
    hits = labels[order].cumsum()
    f1 = 2 * hits / (np.arange(1, len(labels) + 1) + labels.sum())
    return _tally(questions, margins >= margins[order][f1.argmax()]).rates()["f1"]
