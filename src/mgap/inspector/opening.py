"""From an answer in a run's records to a case that can be asked again: its picture, its model, its method and its prior."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from PIL import Image

from mgap.backbones.prepared_pictures import picture_digest
from mgap.errors import ImageError, MgapError, RunError
from mgap.inspector.answer_pairs import Pair
from mgap.inspector.archive import Opened
from mgap.inspector.cases import AskCase
from mgap.io.images import open_image
from mgap.pages.html_page import PagePicture
from mgap.pocket.samples import scene_of
from mgap.pocket.scenes import Scene, render
from mgap.pocket.showcase import describe
from mgap.priors.prior_plan import Prior, Priors
from mgap.priors.subspace import Subspace
from mgap.reports.examples import truth_in_words
from mgap.run.method_plans import VANILLA, MethodPlan
from mgap.run.records import Arm, Run

THUMBNAIL = 192  # pixels of its longer side, at most


@dataclass(frozen=True)
class Card:
    """One answer on a page: small picture, question, and what was said; `closed` says why it cannot be opened."""

    id: str  # of the sample
    picture: PagePicture | None
    question: str
    truth: str
    pair: Pair
    closed: str


def picture_of(opened: Opened, name: str) -> Scene | Image.Image:
    """The very picture that the model saw: drawn again or read again, and refused if its pixels are others.

    Which drawing style a pocket run had is told by the pixels.
    """
    seen = opened.digests.get(name)
    if opened.is_pocket:
        for held_out in (False, True):
            scene = scene_of(name, held_out=held_out)
            if seen in (None, picture_digest(render(scene))):
                return scene
        raise ImageError(f"{name}: the world draws it otherwise than when the run was made; make the run again")
    folder = pictures_folder(opened.run)
    if folder is None:
        raise ImageError(f"{name}: the run does not tell in which folder its pictures are; make it again with --images FOLDER")
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\\" in name:
        raise ImageError(f"{name!r} is not inside the run's folder of pictures: only names below it are read")
    image = open_image(folder / place)
    if seen not in (None, picture_digest(image)):
        raise ImageError(f"{folder / place}: is another picture than the one that the run saw; put that one back")
    return image


def pictures_folder(run: Run) -> Path | None:
    """Where run.json, or the command in it, says that the pictures are."""
    if isinstance(kept := run.plan.get("images"), str):
        return Path(kept)
    try:
        words = shlex.split(str(run.plan.get("command", "")))
    except ValueError:  # a quotation that does not end
        return None
    given = [word.removeprefix("--images=") for word in words if word.startswith("--images=")]
    given += [value for option, value in pairwise(words) if option == "--images"]
    return Path(given[-1]) if given else None


def model_refusal(opened: Opened, models: Sequence[str]) -> str:
    """Why no answer of this run can be asked again here; empty where it can."""
    name = opened.scores.model
    if name in models:
        return ""
    how = f"mgap inspect --model {shlex.quote(name)}"
    return f"This run was made with {name}, which is not among the models here: start with `{how}` to open its answers"


def card(opened: Opened, pair: Pair, models: Sequence[str]) -> Card:
    """The answer with its picture, or why there is none."""
    sample, picture, closed = pair.sample, None, ""
    try:
        picture = thumbnail(picture_of(opened, sample.image), sample.image)
    except MgapError as error:
        closed = f"No picture: {error}"
    closed = closed or model_refusal(opened, models)
    return Card(sample.id, picture, sample.prompt, truth_in_words(sample.truth), pair, closed)


def thumbnail(shown: Scene | Image.Image, name: str) -> PagePicture:
    """Small, for a list."""
    if isinstance(shown, Scene):
        return PagePicture.of(render(shown), describe(shown))
    small = shown.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return PagePicture.of(small, f"The picture {name}")


def case_of(opened: Opened, label: str, pair: Pair, models: Sequence[str]) -> AskCase:
    """What is asked again: the same picture and model, the method with its settings and its prior, and what was told then."""
    if refusal := model_refusal(opened, models):
        raise RunError(refusal)
    scores, arm, sample = opened.scores, opened.arm(label), pair.sample
    picture = picture_of(opened, sample.image)
    told = {arm.method: scores.texts[label][sample.id], VANILLA: scores.texts[scores.baseline][sample.id]}
    truth = truth_in_words(sample.truth)
    why = f"From the run {opened.called}: {arm.label} against {scores.baseline}, {pair.effect}. True: {truth}."
    if arm.method == VANILLA:  # a run without a method: the page's own stands beside it
        return AskCase(sample.prompt, picture, why, scores.model, name=sample.image, told=told)
    place, settings = prior_folder(opened, arm), dict(arm.settings)
    for name, need in MethodPlan(arm.label, arm.method, settings).unlearnt().items():
        if need.kind != "subspace":  # learnt by the run, and kept in its folder
            settings[name] = str(opened.run.folder / "priors" / need.kind)
    return AskCase(
        sample.prompt, picture, why, scores.model, arm.method, settings,
        prior=Subspace.load(place) if place else None, prior_folder=str(place or ""), name=sample.image, told=told,
    )  # fmt: skip


def prior_folder(opened: Opened, arm: Arm) -> Path | None:
    """The subspace that the method worked with: the run keeps those that it fitted; a saved one is read where it lies."""
    if arm.prior is None:
        return None
    prior, kept = Prior.of(arm.prior), opened.run.folder / "priors"
    place = Path(Priors(kept).place(prior))
    if prior.folder is None and place.parent != kept:
        raise RunError(f"{place}: is not in the run's own folder of priors; make the run again")
    if not place.is_dir():
        raise RunError(f"{place}: the prior of {arm.label} is not there, as a folder; make the run again")
    return place
