"""The demo's work: chosen pictures side by side, then pocket-POPE and pocket-CHAIR on test scenes. No printing here."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import transformers

import mgap
from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.methods.base import Method, check_strength
from mgap.methods.mgap import MGAP, PRESETS
from mgap.pocket.benchmark import ASKED, SPLITS, TEST, pope
from mgap.pocket.evaluation import Captions, Progress, Scores, evaluate_captions, evaluate_pope
from mgap.pocket.figures import FILE, Choice, Figures, fit_prior, mgap_at
from mgap.pocket.language import mentions
from mgap.pocket.scenes import render
from mgap.pocket.showcase import CAPTION, Case, cases, invented, judge
from mgap.registry import locate
from mgap.states.subspace import Subspace
from mgap.types import Answer

PAPER_ALPHA = float(PRESETS["paper"]["alpha"])
_SHORT, _LONG = 24, 96  # tokens of an answer, and of a description
_BATCH = 10  # captions written together: a step of the progress bar


@dataclass(frozen=True)
class Plan:
    """What to do. `alpha=None` takes the strength that the model's figures.json records, else the paper's."""

    model: str
    questions: int = 300  # of each split; whole scenes, so a few more
    captions: int = 40
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name in ("questions", "captions"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}={getattr(self, name)} must be at least 1")
        if self.alpha is not None:
            check_strength("alpha", self.alpha)


@dataclass(frozen=True)
class Told:
    """One method's answer to one case: right, wrong or unclear; for a description, what it invents."""

    answer: Answer
    verdict: str | None
    invented: tuple[str, ...]


@dataclass(frozen=True)
class Exhibit:
    """A case and its answers by method."""

    case: Case
    told: Mapping[str, Told]


@dataclass(frozen=True)
class Demo:
    """Everything that came out."""

    plan: Plan
    model: dict[str, Any]  # name, architecture, parameters, dtype, device
    prior: Subspace
    methods: Mapping[str, MGAP | None]
    alpha_from: str
    exhibits: tuple[Exhibit, ...]
    seeds: dict[str, tuple[int, int]]  # of the test scenes, first and last
    pope: Scores
    captions: Mapping[str, Captions]
    seconds: float
    made: str
    versions: dict[str, str]


def run_demo(model: Model, plan: Plan, *, began: float | None = None, progress: Progress | None = None) -> Demo:
    """`began` is a time of `time.perf_counter` to count the seconds from: before the model was loaded, say."""
    began = time.perf_counter() if began is None else began
    report = progress or (lambda *_: None)
    prior = fit_prior(model, progress=lambda _, done, total: report("fitting the prior", done, total))
    methods, alpha_from = choose_methods(plan, prior)
    chosen = cases()
    exhibits = []
    for number, case in enumerate(chosen, start=1):
        exhibits.append(Exhibit(case, {name: _tell(model, method, case) for name, method in methods.items()}))
        report("chosen pictures", number, len(chosen))
    asked: Mapping[str, Method | None] = methods
    count = scenes_for(plan.questions)
    return Demo(
        plan=plan,
        model=_about(model),
        prior=prior,
        methods=methods,
        alpha_from=alpha_from,
        exhibits=tuple(exhibits),
        seeds={
            "pope": (TEST, max(question.scene.seed for question in pope(SPLITS[0], TEST, count))),
            "captions": (TEST, TEST + plan.captions - 1),
        },
        pope=evaluate_pope(model, asked, TEST, count, progress=progress),
        captions=evaluate_captions(
            model, asked, TEST, plan.captions, max_new_tokens=_LONG, batch_size=_BATCH, progress=progress
        ),
        seconds=time.perf_counter() - began,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions={
            "mgap": mgap.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
    )


def scenes_for(questions: int) -> int:
    """How many test scenes it takes to ask so many questions of each split."""
    return -(-questions // ASKED)


def recorded_choice(model: str) -> Choice | None:
    """Which strength was picked for a model on development scenes, as its figures.json has it; None without one."""
    folder = locate(model)
    return Figures.load(folder).choice if (Path(folder) / FILE).is_file() else None


def label(name: str, methods: Mapping[str, MGAP | None]) -> str:
    """How a method is called in tables."""
    method = methods[name]
    return name if method is None else f"MGAP, \u03b1\u00a0=\u00a0{method.settings.alpha:g} ({name})"


def to_json(demo: Demo) -> dict[str, Any]:
    """The same facts for machines."""
    return {
        "made": demo.made,
        "seconds": round(demo.seconds, 1),
        "plan": asdict(demo.plan),
        "model": demo.model,
        "versions": demo.versions,
        "prior": {
            "rank": demo.prior.rank,
            "count": demo.prior.count,
            "explained_variance": demo.prior.explained_variance,
            "hidden_size": demo.prior.hidden_size,
            "origin": demo.prior.origin,
        },
        "alpha_from": demo.alpha_from,
        "methods": {name: None if m is None else {"name": m.name, **asdict(m.settings)} for name, m in demo.methods.items()},
        "seeds": demo.seeds,
        "cases": [_exhibit_json(exhibit) for exhibit in demo.exhibits],
        "pope": {split: {name: asdict(score) for name, score in of.items()} for split, of in demo.pope.items()},
        "captions": {name: {**asdict(found.score), "texts": found.texts} for name, found in demo.captions.items()},
    }


def choose_methods(plan: Plan, prior: Subspace) -> tuple[dict[str, MGAP | None], str]:
    """By name, None being plain decoding; and where the strength beside the paper's comes from."""
    methods: dict[str, MGAP | None] = {"vanilla": None, "paper": MGAP(prior, preset="paper")}
    if plan.alpha is not None:
        name, alpha, source = "given", plan.alpha, "given on the command line"
    else:
        choice = recorded_choice(plan.model)
        if choice is None:
            return methods, "the paper's; none was picked for this model"
        name, alpha = "picked", choice.alpha
        source = f"picked for the highest mean F1 on {choice.scenes} development scenes, none of them a test scene"
    if alpha == PAPER_ALPHA:
        return methods, f"{source}; it is the paper's"
    methods[name] = mgap_at(prior, alpha)
    return methods, source


def _tell(model: Model, method: MGAP | None, case: Case) -> Told:
    picture, length = render(case.scene), _LONG if case.truth == CAPTION else _SHORT
    if method is None:
        answer = model.answer(picture, case.question, max_new_tokens=length)
    else:
        with model.using(method):
            answer = model.answer(picture, case.question, max_new_tokens=length, trace=True)
    if case.truth == CAPTION:
        return Told(answer, None, tuple(invented(case.scene, mentions(answer.text))))
    return Told(answer, judge(case, answer.text), ())


def _about(model: Model) -> dict[str, Any]:
    weights = list(model.backbone.model.parameters())
    return {
        "name": model.backbone.name,
        "architecture": model.backbone.identity.architecture,
        "parameters": sum(p.numel() for p in weights),
        "dtype": str(weights[0].dtype).removeprefix("torch."),
        "device": str(weights[0].device),
    }


def _exhibit_json(exhibit: Exhibit) -> dict[str, Any]:
    case = exhibit.case
    return {
        "title": case.title,
        "why": case.why,
        "scene": asdict(case.scene),
        "question": case.question,
        "truth": list(case.scene.names) if case.truth == CAPTION else case.truth,
        "answers": {
            name: {
                "text": told.answer.text,
                "stop": told.answer.stop,
                "verdict": told.verdict,
                "invented": list(told.invented),
                "trace": [asdict(step) for step in told.answer.trace or ()],
            }
            for name, told in exhibit.told.items()
        },
    }
