"""Runs the demo: chosen pictures side by side, then pocket-POPE and pocket-CHAIR on test scenes. Prints nothing."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.tally import by_group
from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.io.progress import Progress
from mgap.methods.base import Method
from mgap.methods.bias import Bias
from mgap.methods.mgap import MGAP, PRESETS
from mgap.pocket.benchmark import QUESTIONS_PER_SCENE, TEST
from mgap.pocket.evaluation import CaptionScores, Scores, evaluate_captions, yes_no_scores
from mgap.pocket.figures import FILE, NULLS, CardFigures, PickedSetting, fit_prior, mgap_at
from mgap.pocket.language import mentions
from mgap.pocket.samples import pope_samples, scene_of
from mgap.pocket.scenes import Scene, render
from mgap.pocket.showcase import CAPTION, ShowcaseCase, cases, invented, judge
from mgap.priors.subspace import Subspace
from mgap.registry import POCKET_MODELS, locate
from mgap.run.evaluate import Evaluation, answer_first_words
from mgap.settings import check_strength
from mgap.types import Answer, Sample

PAPER_ALPHA = float(PRESETS["paper"]["alpha"])
_SHORT, _LONG = 24, 96  # tokens of an answer, and of a caption
_BATCH = 10  # captions per batch: a step of the progress bar


@dataclass(frozen=True)
class DemoPlan:
    """The demo's settings. `alpha=None` takes those in the model's figures.json, else the paper's."""

    model: str
    questions: int = 300  # per split, rounded up to whole scenes
    captions: int = 40
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name in ("questions", "captions"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}={getattr(self, name)} must be at least 1")
        if self.alpha is not None:
            check_strength("alpha", self.alpha)


@dataclass(frozen=True)
class DemoAnswer:
    """One method's answer to one case: right, wrong or unclear; for a caption, what it invents."""

    answer: Answer
    verdict: str | None
    invented: tuple[str, ...]


@dataclass(frozen=True)
class Exhibit:
    """A case and its answers by method."""

    case: ShowcaseCase
    answers: Mapping[str, DemoAnswer]


@dataclass(frozen=True)
class Change:
    """A yes/no question that a method answers differently from plain decoding; None: neither yes nor no."""

    question: Sample
    before: str | None
    after: str | None

    @property
    def scene(self) -> Scene:
        return scene_of(self.question.image)

    @property
    def effect(self) -> str:
        truth = self.question.truth
        return "corrected" if self.after == truth else "spoilt" if self.before == truth else "wrong either way"


@dataclass(frozen=True)
class Demo:
    """All results."""

    plan: DemoPlan
    model: dict[str, Any]  # name, architecture, parameters, dtype, device
    methods: Mapping[str, MGAP | None]
    bias: Bias | None  # a constant shift picked by the same rule, for yes/no questions; None if nothing was picked
    picked_how: str
    exhibits: tuple[Exhibit, ...]
    seeds: dict[str, tuple[int, int]]  # of the test scenes, first and last
    pope_answers: Evaluation
    captions: Mapping[str, CaptionScores]
    seconds: float
    made: str
    versions: dict[str, str]

    @cached_property
    def pope(self) -> Scores:
        return yes_no_scores(self.pope_answers)

    def label(self, name: str) -> str:
        """A method's name in tables."""
        if self.bias is not None and name == self.bias.name:
            return f"bias ({self.bias.shift:+g}\u00a0to\u00a0yes)"
        method = self.methods[name]
        return name if method is None else f"MGAP, {name} (\u03b1\u00a0=\u00a0{method.settings.alpha:g})"

    def changes(self, split: str, method: str) -> list[Change]:
        """The questions whose verdict a method changes, in order."""
        before, after = (self.pope_answers.verdicts(name) for name in ("vanilla", method))
        asked = by_group(self.pope_answers.benchmark.samples)[split]
        return [Change(q, before[q.id], after[q.id]) for q in asked if before[q.id] != after[q.id]]


def run_demo(model: Model, plan: DemoPlan, *, began: float | None = None, progress: Progress | None = None) -> Demo:
    """Run everything. `began` is a `time.perf_counter` time to count seconds from, e.g. before loading the model."""
    began = time.perf_counter() if began is None else began
    report = progress or (lambda *_: None)
    methods, picked_how = choose_methods(plan, lambda null: fit_prior(model, null, progress=progress))
    chosen = cases()
    exhibits = []
    for number, case in enumerate(chosen, start=1):
        exhibits.append(Exhibit(case, {name: _answer_case(model, method, case) for name, method in methods.items()}))
        report("chosen pictures", number, len(chosen))
    choice = recorded_choice(plan.model)
    bias = None if choice is None else Bias(shift=choice.shift)
    compared: dict[str, Method | None] = {**methods, **({} if bias is None else {bias.name: bias})}
    questions = pope_samples(SPLITS, scenes_for(plan.questions))
    pope_answers = answer_first_words(model, questions, compared, progress=progress)
    return Demo(
        plan=plan,
        model=_describe_model(model),
        methods=methods,
        bias=bias,
        picked_how=picked_how,
        exhibits=tuple(exhibits),
        seeds={
            "pope": (TEST, max(scene_of(sample.image).seed for sample in questions.samples)),
            "captions": (TEST, TEST + plan.captions - 1),
        },
        pope_answers=pope_answers,
        captions=evaluate_captions(
            model, methods, TEST, plan.captions, max_new_tokens=_LONG, batch_size=_BATCH, progress=progress
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
    """The number of test scenes for so many questions per split."""
    return -(-questions // QUESTIONS_PER_SCENE)


def recorded_choice(model: str) -> PickedSetting | None:
    """The settings picked for a model on development scenes, from its figures.json; None without one."""
    folder = POCKET_MODELS.get(model) or locate(model)
    return CardFigures.load(folder).choice if (Path(folder) / FILE).is_file() else None


def to_json(demo: Demo) -> dict[str, Any]:
    """All results as JSON."""
    return {
        "made": demo.made,
        "seconds": round(demo.seconds, 1),
        "plan": asdict(demo.plan),
        "model": demo.model,
        "versions": demo.versions,
        "picked_how": demo.picked_how,
        "methods": {name: None if m is None else _method_json(m) for name, m in demo.methods.items()},
        "bias": None if demo.bias is None else demo.bias.shift,
        "seeds": demo.seeds,
        "cases": [_exhibit_json(exhibit) for exhibit in demo.exhibits],
        "pope": {split: {name: asdict(score) for name, score in of.items()} for split, of in demo.pope.items()},
        "changed": {
            split: {name: [_change_json(c) for c in demo.changes(split, name)] for name in of if name != "vanilla"}
            for split, of in demo.pope.items()
        },
        "captions": {name: {**asdict(of.score), "texts": of.texts} for name, of in demo.captions.items()},
    }


def choose_methods(plan: DemoPlan, fit: Callable[[str], Subspace]) -> tuple[dict[str, MGAP | None], str]:
    """Methods by name (None: plain decoding), and how the settings beside the paper's were chosen. `fit` takes a null image."""
    paper = fit(NULLS[0])
    methods: dict[str, MGAP | None] = {"vanilla": None, "paper": MGAP(paper, preset="paper")}
    choice = recorded_choice(plan.model)
    null = NULLS[0] if choice is None else choice.null_image
    if plan.alpha is not None:
        name, alpha, how = "given", plan.alpha, "the strength was given on the command line"
    elif choice is None:
        return methods, "nothing was picked for this model: the paper's settings only"
    else:
        name, alpha = "picked", choice.alpha
        how = f"picked for the highest mean F1 on {choice.scenes} development scenes, none of them a test scene"
    if (alpha, null) == (PAPER_ALPHA, NULLS[0]):
        return methods, f"{how}; they are the paper's"
    methods[name] = mgap_at(paper if null == NULLS[0] else fit(null), alpha)
    return methods, how


def _answer_case(model: Model, method: MGAP | None, case: ShowcaseCase) -> DemoAnswer:
    picture, length = render(case.scene), _LONG if case.truth == CAPTION else _SHORT
    if method is None:
        answer = model.answer(picture, case.question, max_new_tokens=length)
    else:
        with model.using(method):
            answer = model.answer(picture, case.question, max_new_tokens=length, trace=True)
    if case.truth == CAPTION:
        return DemoAnswer(answer, None, tuple(invented(case.scene, mentions(answer.text))))
    return DemoAnswer(answer, judge(case, answer.text), ())


def _describe_model(model: Model) -> dict[str, Any]:
    weights = list(model.backbone.model.parameters())
    return {
        "name": model.backbone.name,
        "architecture": model.backbone.identity.architecture,
        "parameters": sum(p.numel() for p in weights),
        "dtype": str(weights[0].dtype).removeprefix("torch."),
        "device": str(weights[0].device),
    }


def _method_json(method: MGAP) -> dict[str, Any]:
    prior = method.prior
    return {
        "name": method.name,
        **asdict(method.settings),
        "prior": {
            "rank": prior.rank,
            "count": prior.count,
            "explained_variance": prior.explained_variance,
            "hidden_size": prior.hidden_size,
            "origin": prior.origin,
        },
    }


def _change_json(change: Change) -> dict[str, Any]:
    question = change.question
    return {
        "seed": change.scene.seed,
        "question": question.prompt,
        "truth": question.truth,
        "before": change.before,
        "after": change.after,
        "effect": change.effect,
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
                "text": result.answer.text,
                "stop": result.answer.stop,
                "verdict": result.verdict,
                "invented": list(result.invented),
                "trace": [asdict(step) for step in result.answer.trace or ()],
            }
            for name, result in exhibit.answers.items()
        },
    }
