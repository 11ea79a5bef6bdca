"""Choose one setting of every family on development scenes, by one rule for all, and keep every trial.

Questions: the highest F1, averaged over the three splits of pocket-POPE. Captions: the lowest CHAIRi among the settings that
recall at least what plain decoding does, less 3 points; and a second time, near the plain states: among those of them of which
less than 5% of the states have departed, or no more than of plain decoding. Both: of the latter, among those whose F1 is within
half a point of the family's best. Ties go to the first. A family whose settings all fail has no choice there; nor, near the
plain states, has one that decodes from no state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import mgap
from mgap.decoding.model import Model
from mgap.errors import CorruptFile, RunError, SettingError, one_line
from mgap.io.output_folder import write_files
from mgap.io.progress import Progress
from mgap.io.typed_json import BROKEN, typed
from mgap.pocket.benchmark import DEVELOPMENT, FIT, JUDGE, REPORT
from mgap.pocket.figures import Scored
from mgap.pocket.scenes import WORLD, render
from mgap.run.first_words import CachingEncoder, Encoder
from research.frontier.contenders import BOTH, CAPTIONS, NEAR, PLAIN, QUESTIONS, Contender
from research.frontier.kit import Judges, Kit
from research.frontier.measures import Described, Sheet, Told, ask, describe

FILE = "choices.json"
RECALL = 0.03  # how much less than plain decoding captions may recall
F1 = 0.005  # how much less than a family's best a setting for both may have
DEPARTED = 0.05  # the share of departed states below which a setting is near the plain ones
MOST = 10_000  # scenes of one kind: half of what lies between two first seeds
_ROUNDING = 1e-9


@dataclass(frozen=True)
class QuestionTrial(Scored):
    """Of one setting."""

    label: str


@dataclass(frozen=True)
class CaptionTrial:
    """Of one setting; shares from 0 to 1."""

    label: str
    chair_i: float
    recall: float
    words: float  # of a caption
    departed: float | None  # states; None: it decodes from no one state


@dataclass(frozen=True)
class Tried:
    """What was tried of one family, and the labels chosen, by what for."""

    questions: list[QuestionTrial]
    captions: list[CaptionTrial]
    chosen: dict[str, str]


@dataclass(frozen=True)
class Choices:
    """By family."""

    about: dict[str, Any]  # model, sizes and seeds
    tried: dict[str, Tried]

    def save(self, folder: str | PathLike[str]) -> None:
        write_files(folder, {FILE: json.dumps(asdict(self), indent=1) + "\n"})

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Choices:
        path = Path(folder) / FILE
        try:
            choices: Choices = typed(cls, json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RunError(f"{path}: nothing has been chosen there; run choose first") from None
        except BROKEN as error:
            raise CorruptFile(f"{path}: no choices ({one_line(error)}); name another folder, or remove it") from error
        return choices


def pick_questions(trials: Sequence[QuestionTrial]) -> QuestionTrial:
    """The rule above."""
    return max(trials, key=lambda trial: round(trial.mean, 9))  # the first of equals, whatever order they were summed in


def pick_captions(trials: Sequence[CaptionTrial], plain: CaptionTrial, *, near: bool = False) -> CaptionTrial | None:
    """The rule above; None: no setting passes."""
    passed = [trial for trial in trials if trial.recall >= plain.recall - RECALL - _ROUNDING]
    if near:
        passed = [trial for trial in passed if is_near(trial, plain)]
    return min(passed, key=lambda trial: trial.chair_i, default=None)


def is_near(trial: CaptionTrial, plain: CaptionTrial) -> bool:
    """Whether its states are as near the plain ones as the rule wants."""
    if trial.departed is None or plain.departed is None:
        return False
    return trial.departed < DEPARTED or trial.departed <= plain.departed


def pick(tried: Tried, plain: Tried, chosen_for: Sequence[str]) -> dict[str, str]:
    """The labels of one family by what they are chosen for."""
    found: dict[str, str] = {}
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
    """What figures must name to be repeated, and what must be the same for them to stand in one table."""
    for name, size in sizes.items():
        if not 1 <= size <= MOST:
            raise SettingError(f"{name}={size} must be from 1 to {MOST}: scenes for one use must not run into those of another")
    return {
        "model": model.backbone.name,
        "dtype": model.backbone.dtype_name,
        "world": WORLD,
        "first_seeds": {"fit": FIT, "judge": JUDGE, "development": DEVELOPMENT, "report": report},
        "sizes": dict(sizes),
        "mgap": mgap.__version__,
    }


def check_about(path: Path, there: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with what was measured in another way."""
    if different := [name for name in now if there.get(name) != now[name]]:
        name = different[0]
        raise RunError(f"{path}: its {name} is {there.get(name)}, not {now[name]}; name another folder, or remove it")


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
    told: Callable[[str], None] = lambda _: None,
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
    kept = CachingEncoder(render)
    answered = _try_questions(model, missing, kit, sheet, batch_size, kept, progress)
    for contender in missing:
        trials = _try_captions(model, contender, kit, judges, sheet, batch_size, kept, progress)
        tried = Tried(answered[contender.family], trials, {})
        plain = choices.tried.get(PLAIN, tried)
        choices.tried[contender.family] = replace(tried, chosen=pick(tried, plain, contender.chosen_for))
        choices.save(folder)
        told(f"{contender.family}: {len(contender.settings)} tried")
    return choices


def _try_questions(
    model: Model,
    contenders: Sequence[Contender],
    kit: Kit,
    sheet: Sheet,
    batch_size: int,
    encode: Encoder,
    progress: Progress | None,
) -> dict[str, list[QuestionTrial]]:
    """All families at once: methods share forwards."""
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
        told = Told(verdicts[name], Described([], [], None), None)
        f1 = {split: told.tally(sheet, split).rates()["f1"].value for split in sheet.groups}
        trials[family].append(QuestionTrial(f1, label))
    return trials


def _try_captions(
    model: Model,
    contender: Contender,
    kit: Kit,
    judges: Judges,
    sheet: Sheet,
    batch_size: int,
    encode: Encoder,
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
    """Whether these very settings are in the file, for all that the family is chosen for."""
    if (tried := choices.tried.get(contender.family)) is None:
        return False
    labels = [setting.label for setting in contender.settings]
    found = {QUESTIONS: [t.label for t in tried.questions], CAPTIONS: [t.label for t in tried.captions]}
    return all(found[task] == labels for task in found if task in contender.chosen_for)


def _caption_trial(label: str, sheet: Sheet, found: Described) -> CaptionTrial:
    told = Told({}, found, None)
    rates, departed = told.tally_captions(sheet).rates(), told.caption_departures(sheet)
    return CaptionTrial(
        label=label,
        chair_i=rates["CHAIRi"].value,
        recall=rates["recall"].value,
        words=rates["length"].value,
        departed=None if departed is None else departed.value,
    )
