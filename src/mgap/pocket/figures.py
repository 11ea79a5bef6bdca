"""Measures what a pocket model's card reports: plain decoding, MGAP as published, and MGAP and a bias with picked settings.

The rule that picks them: of all pairs of NULLS and ALPHAS, all else as in the preset "paper", take the one with the highest F1
on development scenes, averaged over the three splits of pocket-POPE; ties go to the smallest alpha, then to the first null
image. The bias, a constant shift of yes against no, is picked among SHIFTS in the same way: on yes/no questions, a method that
does not beat it has shown nothing. Everything else is measured on test scenes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from mgap.benchmarks.chair.scorer import ChairScore
from mgap.benchmarks.tally import rank
from mgap.decoding.model import Model
from mgap.errors import CorruptFile, SettingError, one_line
from mgap.io.output_folder import write_files
from mgap.io.progress import Progress
from mgap.io.strict_json import load_json, strict_json
from mgap.io.typed_json import BROKEN, typed
from mgap.methods.bias import Bias
from mgap.methods.mgap import MGAP
from mgap.pocket.benchmark import DEVELOPMENT, TEST, calibration_prompts
from mgap.pocket.evaluation import (
    OddColours,
    Scores,
    evaluate_amber,
    evaluate_captions,
    evaluate_odd_colours,
    evaluate_pope,
)
from mgap.pocket.scenes import WORLD
from mgap.priors.subspace import Subspace
from mgap.run.first_words import Methods

NULLS = ("black336", "mean_colour", "no_image")  # null images that priors are fitted with; the first is the published one
ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
SHIFTS = (-0.25, 0.25, -0.5, 0.5, -1.0, 1.0, -1.5, 1.5, -2.0, 2.0, -3.0, 3.0, -4.0, 4.0, -6.0, 6.0)  # of yes, in log-odds
FILE = "figures.json"


@dataclass(frozen=True)
class Size:
    """The kind and size of a network."""

    architecture: str
    model_type: str
    parameters: int
    mebibytes: float
    vision: tuple[int, int]  # layers, width
    text: tuple[int, int]

    @classmethod
    def of(cls, network: Any) -> Size:
        text, vision = network.config.get_text_config(), network.config.vision_config
        weights = list(network.parameters())
        return cls(
            architecture=type(network).__name__,
            model_type=network.config.model_type,
            parameters=sum(weight.numel() for weight in weights),
            mebibytes=sum(weight.numel() * weight.element_size() for weight in weights) / 2**20,
            vision=(vision.depth if hasattr(vision, "depth") else vision.num_hidden_layers, vision.hidden_size),
            text=(text.num_hidden_layers, text.hidden_size),
        )


@dataclass(frozen=True)
class Scored:
    """F1 (0..1) on development scenes, by split."""

    f1: dict[str, float]

    @property
    def mean(self) -> float:
        return sum(self.f1.values()) / len(self.f1)


AnyTrial = TypeVar("AnyTrial", bound=Scored)


@dataclass(frozen=True)
class Trial(Scored):
    """MGAP with one null image and strength."""

    null_image: str
    alpha: float


@dataclass(frozen=True)
class ShiftTrial(Scored):
    """A bias with one shift."""

    shift: float


@dataclass(frozen=True)
class PickedSetting:
    """What the rule picked, and every trial."""

    null_image: str
    alpha: float
    shift: float
    scenes: int
    trials: list[Trial]
    shifts: list[ShiftTrial]


@dataclass(frozen=True)
class Calibration:
    """What a prior was fitted on, and how much variance it explains."""

    rank: int
    prompts: int
    prompts_sha256: str
    explained_variance: float
    null_image: str

    @classmethod
    def of(cls, prior: Subspace) -> Calibration:
        return cls(
            rank=prior.rank,
            prompts=prior.count,
            prompts_sha256=prior.origin["prompts_sha256"],
            explained_variance=prior.explained_variance,
            null_image=prior.origin["null_image"],
        )


@dataclass(frozen=True)
class CardFigures:
    """All figures, by method: vanilla, bias (yes/no questions only), paper, picked. POPE is by split first, AMBER by kind."""

    model: str
    world: int
    size: Size
    dtype: str
    device: str
    scenes: int
    priors: dict[str, Calibration]  # of paper and picked
    choice: PickedSetting
    pope: Scores
    pope_held_out: Scores
    amber: Scores
    captions: dict[str, ChairScore]
    odd_colours: dict[str, OddColours]
    versions: dict[str, str]

    def save(self, folder: str | PathLike[str]) -> None:
        write_files(folder, {FILE: strict_json(asdict(self), required=FILE, indent=1) + "\n"})

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> CardFigures:
        path = Path(folder) / FILE
        try:
            figures: CardFigures = typed(cls, load_json(path))
        except BROKEN as error:
            raise CorruptFile(f"{path}: not the figures of a pocket model ({one_line(error)}); measure it again") from error
        return figures


def mgap_at(prior: Subspace, alpha: float) -> MGAP:
    """MGAP at a strength, the rest as in the preset "paper"; without the warning about strengths above 1."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="alpha=", category=UserWarning)
        return MGAP(prior, alpha=alpha)


def pick(
    model: Model,
    *,
    nulls: Sequence[str] = NULLS,
    alphas: Sequence[float] = ALPHAS,
    shifts: Sequence[float] = SHIFTS,
    first: int = DEVELOPMENT,
    count: int = 200,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> PickedSetting:
    """Apply the rule of this module."""
    if not (nulls and alphas and shifts):
        raise SettingError("no null images, alphas or shifts to pick from: give at least one of each")
    priors = {null: fit_prior(model, null, batch_size=batch_size, progress=progress) for null in nulls}
    pairs = {f"{null} {alpha}": (null, alpha) for alpha in sorted(alphas) for null in nulls}
    methods: Methods = {
        **{name: mgap_at(priors[null], alpha) for name, (null, alpha) in pairs.items()},
        **{f"bias {shift}": Bias(shift=shift) for shift in sorted(shifts, key=abs)},
    }
    scores = evaluate_pope(model, methods, first, count, batch_size=batch_size, progress=progress)
    f1 = {name: {split: of[name].f1.value for split, of in scores.items()} for name in methods}
    trials = [Trial(f1[name], null, alpha) for name, (null, alpha) in pairs.items()]
    shift_trials = [ShiftTrial(f1[f"bias {shift}"], shift) for shift in sorted(shifts, key=abs)]
    best, best_shift = best_of(trials), best_of(shift_trials)
    return PickedSetting(best.null_image, best.alpha, best_shift.shift, count, trials, shift_trials)


def best_of(trials: Sequence[AnyTrial]) -> AnyTrial:
    """The trial with the highest F1, averaged over the splits; the first of equals."""
    return trials[rank({number: trial.mean for number, trial in enumerate(trials)})[0]]


def fit_prior(model: Model, null_image: str = NULLS[0], *, batch_size: int = 64, progress: Progress | None = None) -> Subspace:
    """Fit a pocket model's prior: rank 5, on questions that no test asks."""
    prompts = calibration_prompts()
    report = None if progress is None else lambda done: progress(f"prompts, {null_image}", done, len(prompts))
    return Subspace.fit(model, prompts, rank=5, null_image=null_image, batch_size=batch_size, progress=report)


def measure(
    model: Model,
    *,
    nulls: Sequence[str] = NULLS,
    scenes: int = 500,
    development: int = 200,
    odd_scenes: int = 4000,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> CardFigures:
    """Pick settings on development scenes; measure the model, the paper's settings and the picked ones on test scenes."""

    def stage(name: str) -> Progress | None:
        return None if progress is None else lambda label, done, total: progress(f"{name}: {label}", done, total)

    choice = pick(model, nulls=nulls, count=development, batch_size=batch_size, progress=stage("picking"))
    priors = {
        "paper": fit_prior(model, batch_size=batch_size),
        "picked": fit_prior(model, choice.null_image, batch_size=batch_size),
    }
    methods: Methods = {
        "vanilla": None,
        "paper": MGAP(priors["paper"]),
        "picked": mgap_at(priors["picked"], choice.alpha),
    }
    with_bias: Methods = {"vanilla": None, "bias": Bias(shift=choice.shift), **methods}
    options: dict[str, Any] = {"batch_size": batch_size}
    captions = evaluate_captions(model, methods, TEST, scenes, progress=stage("CHAIR"), **options)
    network = model.backbone.model
    return CardFigures(
        model=model.backbone.name,
        world=WORLD,
        size=Size.of(network),
        dtype=str(network.dtype).removeprefix("torch."),
        device=model.backbone.device.type,
        scenes=scenes,
        priors={name: Calibration.of(prior) for name, prior in priors.items()},
        choice=choice,
        pope=evaluate_pope(model, with_bias, TEST, scenes, progress=stage("POPE"), **options),
        pope_held_out=evaluate_pope(
            model, with_bias, TEST, scenes, held_out=True, progress=stage("POPE, held-out style"), **options
        ),
        amber=evaluate_amber(model, with_bias, TEST, scenes, progress=stage("AMBER"), **options),
        captions={name: of.score for name, of in captions.items()},
        odd_colours=evaluate_odd_colours(model, methods, TEST, odd_scenes, progress=stage("colours"), **options),
        versions=dict(priors["paper"].origin["versions"]),
    )
