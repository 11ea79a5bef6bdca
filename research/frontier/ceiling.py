"""How well a linear probe of a state could answer: probes trained on the truth, layer by layer and on two margins.

A method that moves the head's input and leaves the head alone answers yes where a linear function of the state it moves is
positive. A logistic regression trained on the labels of development scenes, which no method here gets, shows what each layer's
state at the last position of the prompt can give; hs[L] is the head's input. A contrast answers by a linear function of two
margins of yes over no, with the picture and without it: the same regression on those shows what contrasts can give. For
comparison: plain decoding with the best threshold on yes against no for the very questions that are scored, which is more than
any choice can promise.
"""

from __future__ import annotations

from collections.abc import Callable
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
from mgap.methods.blind import NULLS, null_image_builder
from mgap.methods.kinds.opposed_words import log_odds
from mgap.pocket.benchmark import DEVELOPMENT, REPORT
from mgap.pocket.samples import pope_samples
from mgap.run.first_words import encode_rows
from mgap.types import Sample

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Ceiling:
    """F1 by split; and the plain margins of the scored questions, in their order, for `thresholds`."""

    probes: dict[str, dict[str, Rate]]  # by layer
    margins: dict[str, dict[str, Rate]]  # of the plain margin, and of it and a blind one by null image
    plain: dict[str, Rate]
    best_threshold: dict[str, Rate]
    plain_margins: dict[str, list[float]]  # by split

    def to_json(self) -> dict[str, Any]:
        """All but the margins of single questions."""
        return {name: value for name, value in asdict(self).items() if name != "plain_margins"}


@dataclass(frozen=True)
class Readings:
    """What a model's last position shows of every question."""

    states: Tensor  # [n, layers, d], float32, on the CPU
    margins: dict[str, Floats]  # [n] of yes over no: "plain", and by null image


def read_questions(
    model: Model, benchmark: Benchmark, layers: int | None = None, *, batch_size: int = 64, progress: Progress | None = None
) -> Readings:
    """States hs[0 .. L], or the last few `layers` of them, and margins with the picture and with each null image."""
    up, down = (
        torch.tensor(sorted(ids), device=model.backbone.device) for ids in Bias(shift=0.0).tokens(model.backbone.tokenizer)
    )
    builders: dict[str, Callable[..., Any]] = {null: null_image_builder("a probe", model.backbone, null) for null in NULLS}
    states, margins = list[Tensor](), {name: list[Tensor]() for name in ("plain", *NULLS)}
    rows = [(sample.image, sample.prompt) for sample in benchmark.samples]

    def forward(inputs: dict[str, Tensor], name: str, *, read_states: bool = False) -> Any:
        out = model.backbone.model(**inputs, output_hidden_states=read_states, use_cache=False, logits_to_keep=1)
        logits = out.logits[:, -1].float()
        margins[name].append(log_odds(logits, up, down).cpu())
        return out

    with torch.no_grad(), shared_pictures(model.backbone):
        for inputs, done in encode_rows(model, rows, benchmark.picture, batch_size):
            hidden = forward(inputs, "plain", read_states=True).hidden_states
            states.append(torch.stack([layer[:, -1].float().cpu() for layer in hidden[-(layers or len(hidden)) :]], 1))
            for null, build in builders.items():
                forward(build(inputs), null)
            report_progress(progress, "questions for probes", done, len(rows))
    return Readings(torch.cat(states), {name: torch.cat(of).double().numpy() for name, of in margins.items()})


def measure_ceiling(
    model: Model,
    scenes: int = 300,
    reported: int = 500,
    layers: int | None = None,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Ceiling:
    """Probes trained on all three splits of `scenes` development scenes, scored on `reported` others."""
    training, scoring = pope_samples(SPLITS, scenes, first=DEVELOPMENT), pope_samples(SPLITS, reported, first=REPORT)
    scored_questions = by_group(scoring.samples)
    taught = read_questions(model, training, layers, batch_size=batch_size, progress=progress)
    asked = read_questions(model, scoring, layers, batch_size=batch_size, progress=progress)
    labels = np.array([sample.truth == "yes" for sample in training.samples])
    spans = dict(zip(SPLITS, np.array_split(np.arange(len(scoring.samples)), len(SPLITS)), strict=True))

    def scored(yes: np.ndarray[Any, Any]) -> dict[str, Rate]:
        return {split: tally_yes(scored_questions[split], yes[spans[split]]).rates()["f1"] for split in SPLITS}

    def probe(columns: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> dict[str, Rate]:
        fitted = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=3000)).fit(columns, labels)
        return scored(fitted.predict(others))

    last = len(model.backbone.layers)
    first = last + 1 - taught.states.shape[1]
    both = {"plain": ("plain",), **{f"plain and {null}": ("plain", null) for null in NULLS}}
    margins = asked.margins["plain"]
    return Ceiling(
        probes={
            str(layer): probe(taught.states[:, layer - first].numpy(), asked.states[:, layer - first].numpy())
            for layer in range(first, last + 1)
        },
        margins={
            name: probe(*(np.column_stack([of.margins[one] for one in names]) for of in (taught, asked)))
            for name, names in both.items()
        },
        plain=scored(margins > 0),
        best_threshold={split: _best_f1(scored_questions[split], margins[spans[split]]) for split in SPLITS},
        plain_margins={split: margins[spans[split]].tolist() for split in SPLITS},
    )


def tally_yes(questions: list[Sample], yes: np.ndarray[Any, Any]) -> Tally:
    """POPE's tally of answers that are all yes or no."""
    verdicts = ["yes" if one else "no" for one in yes]
    return tally_verdicts(questions, verdicts, verdicts)


def _best_f1(questions: list[Sample], margins: Floats) -> Rate:
    """F1 at the best threshold for these questions."""
    order = np.argsort(-margins)
    labels = np.array([sample.truth == "yes" for sample in questions])
    hits = labels[order].cumsum()
    f1 = 2 * hits / (np.arange(1, len(labels) + 1) + labels.sum())
    return tally_yes(questions, margins >= margins[order][f1.argmax()]).rates()["f1"]
