"""Turns a recorded answer into a case to ask again: its picture, model, method and prior."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from mgap.backbones.prepared_pictures import picture_digest
from mgap.errors import ImageError, MgapError, RunError
from mgap.inspector.answer_pairs import Pair
from mgap.inspector.archive import ScoredRun
from mgap.inspector.cases import AskCase
from mgap.pages.html_page import PagePicture
from mgap.pocket.difficulty import Difficulty
from mgap.pocket.samples import scene_of
from mgap.pocket.scenes import Scene, render
from mgap.pocket.showcase import describe
from mgap.priors.prior_plan import Prior, Priors
from mgap.priors.subspace import Subspace
from mgap.reports.examples import truth_in_words
from mgap.run.method_plans import VANILLA, MethodPlan
from mgap.run.records import RunMethod
from mgap.run.seen_pictures import NO_PICTURE, read_again

THUMBNAIL = 192  # pixels, longer side


@dataclass(frozen=True)
class Card:
    """One answer on a page: thumbnail, question and answers; `closed` says why it cannot be opened."""

    id: str  # of the sample
    picture: PagePicture | None
    question: str
    truth: str
    pair: Pair
    closed: str


def picture_of(opened: ScoredRun, name: str) -> Scene | Image.Image:
    """The picture that the model saw, drawn or read again, and refused if its pixels differ.

    The pixels tell which drawing style a pocket run had.
    """
    if not name:
        raise ImageError(NO_PICTURE)
    digest = opened.digests.get(name)
    if opened.is_pocket:
        difficulty = Difficulty.of(opened.run.plan.get("difficulty", {}))
        for held_out in (False, True):
            scene = scene_of(name, held_out=held_out, difficulty=difficulty)
            if digest in (None, picture_digest(render(scene))):
                return scene
        raise ImageError(f"{name}: the world draws it otherwise than when the run was made; make the run again")
    return read_again(opened.run, name, digest)


def model_refusal(opened: ScoredRun, models: Sequence[str]) -> str:
    """Why no answer of this run can be asked again here; empty if it can."""
    name = opened.scores.model
    if name in models:
        return ""
    how = f"mgap inspect --model {shlex.quote(name)}"
    return f"This run was made with {name}, which is not among the models here: start with `{how}` to open its answers"


def card(opened: ScoredRun, pair: Pair, models: Sequence[str]) -> Card:
    """The answer with its picture, or the reason there is none."""
    sample, picture, closed = pair.sample, None, ""
    try:
        picture = thumbnail(picture_of(opened, sample.image), sample.image)
    except MgapError as error:
        closed = f"No picture: {error}"
    closed = closed or model_refusal(opened, models)
    return Card(sample.id, picture, sample.prompt, truth_in_words(sample.truth), pair, closed)


def thumbnail(shown: Scene | Image.Image, name: str) -> PagePicture:
    """The picture at the size of a list."""
    if isinstance(shown, Scene):
        return PagePicture.of(render(shown), describe(shown))
    small = shown.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return PagePicture.of(small, f"The picture {name}")


def case_of(opened: ScoredRun, label: str, pair: Pair, models: Sequence[str]) -> AskCase:
    """The case of an answer: picture, model, method with settings and prior, and the recorded answers."""
    if refusal := model_refusal(opened, models):
        raise RunError(refusal)
    scores, method, sample = opened.scores, opened.method(label), pair.sample
    picture = picture_of(opened, sample.image)
    recorded = {method.method: scores.texts[label][sample.id], VANILLA: scores.texts[scores.baseline][sample.id]}
    truth = truth_in_words(sample.truth)
    why = f"From the run {opened.display_name}: {method.label} against {scores.baseline}, {pair.effect}. True: {truth}."
    if method.method == VANILLA:  # a run without a method: compare with the page's own
        return AskCase(sample.prompt + method.suffix, picture, why, scores.model, name=sample.image, recorded=recorded)
    place, settings = prior_folder(opened, method), dict(method.settings)
    for name, need in MethodPlan(method.label, method.method, settings).unlearnt().items():
        if need.kind != "subspace":  # learnt by the run and saved in its folder
            settings[name] = str(opened.run.folder / "priors" / need.kind)
    return AskCase(
        sample.prompt, picture, why, scores.model, method.method, settings,
        prior=Subspace.load(place) if place else None, prior_folder=str(place or ""), name=sample.image, recorded=recorded,
    )  # fmt: skip


def prior_folder(opened: ScoredRun, method: RunMethod) -> Path | None:
    """The folder of the method's subspace: the run's own if it was fitted there, else the one it was loaded from."""
    if method.prior is None:
        return None
    prior, fitted = Prior.of(method.prior), opened.run.folder / "priors"
    place = Path(Priors(fitted).place(prior))
    if prior.folder is None and place.parent != fitted:
        raise RunError(f"{place}: is not in the run's own folder of priors; make the run again")
    if not place.is_dir():
        raise RunError(f"{place}: the prior of {method.label} is not there, as a folder; make the run again")
    return place
