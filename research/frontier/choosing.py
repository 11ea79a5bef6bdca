"""Chooses settings of every family on development scenes, by the same rules for all, and keeps every trial.

- questions: the highest F1, averaged over the three splits of pocket-POPE.
- captions: the lowest CHAIRi among settings whose recall is at most 3 points below plain decoding's.
- captions-near: the same, among settings of which less than 5% of the states have departed, or no more than of plain decoding.
- both: the same as captions-near, among settings whose F1 is within half a point of the family's best.

Ties go to the first. A family has no choice where all its settings fail, nor, near the plain states, if it decodes from no
state. What its authors published is kept beside the choices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import mgap
from mgap.benchmarks.answer_texts import mean_words
from mgap.decoding.model import Model
from mgap.errors import CorruptFile, RunError, SettingError, one_line
from mgap.io.progress import Progress
from mgap.io.regular_files import read_regular
from mgap.io.typed_json import BROKEN, typed
from mgap.pocket.benchmark import DEVELOPMENT, FIT, JUDGE, REPORT
from mgap.pocket.figures import Scored, best_of
from mgap.pocket.scenes import WORLD
from mgap.run.first_words import CachingEncoder, Encode
from research.frontier.contenders import BOTH, CAPTIONS, NEAR, PLAIN, PUBLISHED, QUESTIONS, Contender
from research.frontier.kit import Judges, Kit
from research.frontier.measures import SceneCaptions, Sheet, SheetAnswers, ask, describe
from research.frontier.shared_files import add_to_file

FILE = "choices.json"
RECALL = 0.03  # how much lower than plain decoding's the recall of captions may be
F1 = 0.005  # how much lower than the family's best the F1 of a setting for both may be
DEPARTED = 0.05  # share of departed states below which a setting counts as near
MAX_SCENES = 10_000  # scenes per use: half the distance between two first seeds
_ROUNDING = 1e-9


@dataclass(frozen=True)
class QuestionTrial(Scored):
    """One setting's F1 on questions."""

    label: str


@dataclass(frozen=True)
class CaptionTrial:
    """One setting's captions; shares from 0 to 1."""

    label: str
    chair_i: float
    recall: float
    words: float  # per caption
    departed: float | None  # share of states; None: it does not decode from a single state


@dataclass(frozen=True)
class Tried:
    """The trials of one family, and the chosen labels by purpose."""

    questions: list[QuestionTrial]
    captions: list[CaptionTrial]
    chosen: dict[str, str]


@dataclass(frozen=True)
class Choices:
    """All trials and choices, by family."""

    about: dict[str, Any]  # model, sizes and seeds
    tried: dict[str, Tried]

    def add(self, folder: str | PathLike[str], family: str, tried: Tried) -> Choices:
        """Save one more family, beside those that other processes have saved there meanwhile; return all of them."""
        path = Path(folder) / FILE
        return add_to_file(path, self, Choices.load, lambda now: replace(now, tried={**now.tried, family: tried}))

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Choices:
        path = Path(folder) / FILE
        try:
            choices: Choices = typed(cls, json.loads(read_regular(path).decode()))
        except FileNotFoundError:
            raise RunError(f"{path}: nothing has been chosen there; run choose first") from None
        except BROKEN as error:
            raise CorruptFile(f"{path}: no choices ({one_line(error)}); name another folder, or remove it") from error
        return choices


def pick_questions(trials: Sequence[QuestionTrial]) -> QuestionTrial:
    """The rule for questions."""
    return best_of(trials)


def pick_captions(trials: Sequence[CaptionTrial], plain: CaptionTrial, *, near: bool = False) -> CaptionTrial | None:
    """The rule for captions; None if no setting passes."""
    passed = [trial for trial in trials if trial.recall >= plain.recall - RECALL - _ROUNDING]
    if near:
        passed = [trial for trial in passed if is_near(trial, plain)]
    return min(passed, key=lambda trial: trial.chair_i, default=None)


def is_near(trial: CaptionTrial, plain: CaptionTrial) -> bool:
    """Whether few enough of its states have departed."""
    if trial.departed is None or plain.departed is None:
        return False
    return trial.departed < DEPARTED or trial.departed <= plain.departed


def pick(tried: Tried, plain: Tried, chosen_for: Sequence[str], published: str = "") -> dict[str, str]:
    """The chosen labels of one family, by purpose, and the published one."""
    found = {PUBLISHED: published} if published else {}
    if QUESTIONS in chosen_for:
        found[QUESTIONS] = pick_questions(tried.questions).label
    for purpose in (CAPTIONS, NEAR):
        if purpose in chosen_for and (best := pick_captions(tried.captions, plain.captions[0], near=purpose == NEAR)):
            found[purpose] = best.label
    if BOTH in chosen_for:
        least = pick_questions(tried.questions).mean - F1 - _ROUNDING
        good = {trial.label for trial in tried.questions if trial.mean >= least}
        if best := pick_captions([trial for trial in tried.captions if trial.label in good], plain.captions[0], near=True):
            found[BOTH] = best.label
    return found


def about(model: Model, sizes: Mapping[str, int], report: int = REPORT) -> dict[str, Any]:
    """The facts that make figures reproducible; figures in one table must share them."""
    for name, size in sizes.items():
        if not 1 <= size <= MAX_SCENES:
            raise SettingError(
                f"{name}={size} must be from 1 to {MAX_SCENES}: scenes for one use must not run into those of another"
            )
    return {
        "model": model.backbone.name,
        "dtype": model.backbone.dtype_name,
        "world": WORLD,
        "first_seeds": {"fit": FIT, "judge": JUDGE, "development": DEVELOPMENT, "report": report},
        "sizes": dict(sizes),
        "mgap": mgap.__version__,
    }


def check_about(path: Path, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse to resume results that were measured differently."""
    if different := [name for name in current if recorded.get(name) != current[name]]:
        name = different[0]
        raise RunError(f"{path}: its {name} is {recorded.get(name)}, not {current[name]}; name another folder, or remove it")


def choose(
    model: Model,
    contenders: Sequence[Contender],
    folder: str | PathLike[str],
    *,
    scenes: int = 300,
    captions: int = 200,
    fit: int = 400,
    judge: int = 400,
    batch_size: int = 64,
    progress: Progress | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Choices:
    """Try every setting and apply the rule. What is in the folder's file already, of the same sizes, is not tried again."""
    if not contenders or contenders[0].family != PLAIN:
        raise SettingError(f"{PLAIN} must be the first contender: the others are held against it")
    facts = about(model, {"scenes": scenes, "captions": captions, "fit": fit, "judge": judge})
    choices = Choices(facts, {})
    if (Path(folder) / FILE).exists():
        choices = Choices.load(folder)
        check_about(Path(folder) / FILE, choices.about, facts)
    missing = [contender for contender in contenders if not _is_tried(contender, choices)]
    if not missing:
        return choices
    kit = Kit(model, scenes=fit, batch_size=batch_size, progress=progress)
    judges = Judges.of(model, judge, batch_size=batch_size, progress=progress)
    sheet = Sheet.of(DEVELOPMENT, scenes=scenes, captions=captions)
    encoder = CachingEncoder()
    answered = _try_questions(model, missing, kit, sheet, batch_size, encoder, progress)
    for contender in missing:
        trials = _try_captions(model, contender, kit, judges, sheet, batch_size, encoder, progress)
        tried = Tried(answered[contender.family], trials, {})
        chosen = pick(tried, choices.tried.get(PLAIN, tried), contender.chosen_for, contender.published)
        choices = choices.add(folder, contender.family, replace(tried, chosen=chosen))
        log(f"{contender.family}: {len(contender.settings)} tried")
    return choices


def _try_questions(
    model: Model,
    contenders: Sequence[Contender],
    kit: Kit,
    sheet: Sheet,
    batch_size: int,
    encode: Encode,
    progress: Progress | None,
) -> dict[str, list[QuestionTrial]]:
    """All families together, because methods share forwards."""
    methods = {
        (contender.family, setting.label): setting.make(kit)
        for contender in contenders
        if QUESTIONS in contender.chosen_for
        for setting in contender.settings
    }
    names = {f"{family} ({label})": (family, label) for family, label in methods}
    how: dict[str, Any] = {"batch_size": batch_size, "encode": encode, "progress": progress}
    verdicts = ask(model, sheet, {name: methods[key] for name, key in names.items()}, **how)
    trials: dict[str, list[QuestionTrial]] = {contender.family: [] for contender in contenders}
    for name, (family, label) in names.items():
        answers = SheetAnswers(verdicts[name], SceneCaptions([], [], None), None)
        f1 = {split: answers.tally(sheet, split).rates()["f1"].value for split in sheet.groups}
        trials[family].append(QuestionTrial(f1, label))
    return trials


def _try_captions(
    model: Model,
    contender: Contender,
    kit: Kit,
    judges: Judges,
    sheet: Sheet,
    batch_size: int,
    encode: Encode,
    progress: Progress | None,
) -> list[CaptionTrial]:
    settings = contender.settings if CAPTIONS in contender.chosen_for else ()
    trials: list[CaptionTrial] = []
    for setting in settings:

        def stage(label: str, done: int, total: int) -> None:  # one bar for the whole family
            if progress is not None:
                progress(f"{label}, {contender.family}", len(trials) * total + done, len(settings) * total)

        method = setting.make(kit)
        how: dict[str, Any] = {"batch_size": batch_size, "encode": encode, "progress": stage}
        found = describe(model, method, sheet.described, judges.along, **how)
        trials.append(_caption_trial(setting.label, sheet, found))
    return trials


def _is_tried(contender: Contender, choices: Choices) -> bool:
    """Whether the file has exactly these settings, for every purpose of the family."""
    if (tried := choices.tried.get(contender.family)) is None:
        return False
    labels = [setting.label for setting in contender.settings]
    found = {QUESTIONS: [t.label for t in tried.questions], CAPTIONS: [t.label for t in tried.captions]}
    return all(found[task] == labels for task in found if task in contender.chosen_for)


def _caption_trial(label: str, sheet: Sheet, captions: SceneCaptions) -> CaptionTrial:
    answers = SheetAnswers({}, captions, None)
    rates, departed = answers.tally_captions(sheet).rates(), answers.caption_departures(sheet)
    return CaptionTrial(
        label=label,
        chair_i=rates["CHAIRi"].value,
        recall=rates["recall"].value,
        words=mean_words(captions.texts),
        departed=None if departed is None else departed.value,
    )
