"""Reports every chosen setting once, on scenes that nothing was chosen on, with differences between methods paired by scene.

Answers are saved in ANSWERS after every method; a method in it is not measured again. Figures and differences are computed from
it, with 95% intervals from a bootstrap that draws the same scenes for all methods.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from mgap.benchmarks.answer_texts import mean_words
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.statistics import Rate
from mgap.benchmarks.tally import Difference, compare
from mgap.decoding.model import Model
from mgap.errors import CorruptFile, RunError, one_line
from mgap.io.progress import Progress
from mgap.io.regular_files import read_regular
from mgap.io.typed_json import BROKEN, typed
from mgap.methods.base import Method
from mgap.pocket.benchmark import REPORT
from mgap.run.first_words import CachingEncoder, Encode, encode_rows
from research.frontier.choosing import FILE as CHOICES
from research.frontier.choosing import Choices, about, check_about
from research.frontier.contenders import BOTH, CAPTIONS, PLAIN, QUESTIONS, Contender, in_order
from research.frontier.kit import Judges, Kit
from research.frontier.measures import (
    HARDEST,
    HELD_OUT,
    NEITHER,
    Sheet,
    SheetAnswers,
    ask,
    describe,
    judge_first,
    name_colours,
)
from research.frontier.pricing import price
from research.frontier.shared_files import add_to_file

ANSWERS = "answers.json"
PRICED = 20  # captions decoded one by one to measure the cost, unless another number is given
ASKED = ("scenes", "held_out", "captions", "amber", "colours")  # what a report has sizes of
RIVALS = (
    ("mgap", QUESTIONS),
    ("mgap", CAPTIONS),
    ("mgap", BOTH),
    (PLAIN, QUESTIONS),
    ("bias", QUESTIONS),
    ("blind", QUESTIONS),
    ("blind", CAPTIONS),
    ("vcd", QUESTIONS),
    ("vcd", CAPTIONS),
)
PAIRED = {  # figure -> group of questions (None: captions) and name in its tally
    "adversarial F1": (HARDEST, "f1"),
    "random accuracy": ("random", "accuracy"),
    "held-out adversarial F1": (HELD_OUT + HARDEST, "f1"),
    "CHAIRi": (None, "CHAIRi"),
    "CHAIRs": (None, "CHAIRs"),
    "recall": (None, "recall"),
}


@dataclass(frozen=True)
class Chosen:
    """One setting, and the purposes it was chosen for."""

    family: str
    label: str
    purposes: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """A chosen setting and its answers."""

    chosen: Chosen
    told: SheetAnswers


@dataclass(frozen=True)
class Answers:
    """All results, by the name of the setting."""

    about: dict[str, Any]
    results: dict[str, Result]

    def add(self, folder: str | PathLike[str], name: str, result: Result) -> Answers:
        """Save one more result, beside those that other processes have saved there meanwhile; return all of them."""
        path = Path(folder) / ANSWERS
        return add_to_file(path, self, Answers.load, lambda now: replace(now, results={**now.results, name: result}))

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Answers:
        path = Path(folder) / ANSWERS
        try:
            answers: Answers = typed(cls, json.loads(read_regular(path).decode()))
        except BROKEN as error:
            raise CorruptFile(
                f"{path}: no answers of a report ({one_line(error)}); name another folder, or remove it"
            ) from error
        return answers


def chosen_settings(choices: Choices, families: Sequence[str]) -> dict[str, Chosen]:
    """Chosen settings by name, in the order of the families; one chosen for several purposes occurs once."""
    found: dict[str, Chosen] = {}
    for family in families:
        if family not in choices.tried:
            raise RunError(f"no setting of {family} has been chosen yet: run choose with it first")
        labels = choices.tried[family].chosen
        for label in dict.fromkeys(labels.values()):
            purposes = tuple(purpose for purpose, of in labels.items() if of == label)
            found[f"{family} ({label})"] = Chosen(family, label, purposes)
    return found


def sheet_of(answers: Answers) -> Sheet:
    """The questions that these are the answers to."""
    sizes: dict[str, Any] = {name: answers.about["sizes"].get(name, 0) for name in ASKED}
    return Sheet.of(answers.about["first_seeds"]["report"], **sizes)


def report(
    model: Model,
    contenders: Sequence[Contender],
    choices: Choices,
    folder: str | PathLike[str],
    *,
    first: int = REPORT,
    scenes: int = 1000,
    held_out: int = 500,
    captions: int = 500,
    amber: int = 500,
    colours: int = 0,
    priced: int = PRICED,
    batch_size: int = 64,
    progress: Progress | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> tuple[Sheet, Answers]:
    """Measure the chosen settings; fits and reference states have the sizes used in choosing."""
    sizes = {name: choices.about["sizes"][name] for name in ("fit", "judge")}
    asked = dict(zip(ASKED, (scenes, held_out, captions, amber, colours), strict=True))
    facts = about(model, {**sizes, **{name: size for name, size in asked.items() if size}}, first)
    free = {name: facts[name] for name in ("sizes", "first_seeds", "dtype")}
    check_about(Path(CHOICES), {**choices.about, **free}, facts)  # the same model and world as the choice
    answers = Answers(facts, {})
    if (Path(folder) / ANSWERS).exists():
        answers = Answers.load(folder)
        check_about(Path(folder) / ANSWERS, answers.about, facts)
    sheet = sheet_of(answers)
    how: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
    kit = Kit(model, scenes=sizes["fit"], **how)
    by_family = {contender.family: contender for contender in contenders}
    wanted = chosen_settings(choices, list(by_family))
    for name in wanted:
        if name in answers.results:
            log(f"{name}: measured before")
    if missing := {name: chosen for name, chosen in wanted.items() if name not in answers.results}:
        made = {name: by_family[chosen.family].setting(chosen.label).make(kit) for name, chosen in missing.items()}
        judges, how = Judges.of(model, sizes["judge"], **how), {**how, "encode": CachingEncoder()}
        verdicts = ask(model, sheet, made, **how)  # together, because methods share forwards
        for name, chosen in missing.items():
            told = measure(model, made[name], sheet, judges, verdicts[name], priced=priced, **how)
            answers = answers.add(folder, name, Result(chosen, told))
            log(f"{name}: measured")
    shown = {  # as chosen now; the file may also have settings no longer chosen
        name: Result(chosen, answers.results[name].told)
        for name, chosen in chosen_settings(choices, in_order(choices.tried)).items()
        if name in answers.results
    }
    return sheet, replace(answers, results=shown)


def measure(
    model: Model,
    method: Method | None,
    sheet: Sheet,
    judges: Judges,
    verdicts: dict[str, str],
    *,
    priced: int = PRICED,
    batch_size: int = 64,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> SheetAnswers:
    """All answers of one method; `verdicts` are those to the questions, and the cost is that of `priced` captions."""
    how: dict[str, Any] = {"batch_size": batch_size, "encode": encode, "progress": progress}
    return SheetAnswers(
        verdicts=verdicts,
        described=describe(model, method, sheet.described, judges.along, **how),
        departed_first=judge_first(model, method, sheet.hardest, judges.first, **how),
        price=price(model, method, sheet.described, priced, encode=encode, progress=progress),
        colours=name_colours(model, method, sheet.coloured, **how) if sheet.coloured else None,
    )


def figures(sheet: Sheet, told: SheetAnswers) -> dict[str, Rate | float | None]:
    """One method's row of the table; None: an empty cell."""
    rates = {group: told.tally(sheet, group).rates() for group in (*SPLITS, HELD_OUT + HARDEST)}
    captions = told.tally_captions(sheet).rates()
    colours = told.score_colours(sheet)
    return {
        **{f"{split} F1": rates[split]["f1"] for split in SPLITS},
        "random accuracy": rates["random"]["accuracy"],
        "held-out adversarial F1": rates[HELD_OUT + HARDEST]["f1"],
        "unparsed": float(sum(letters.count(NEITHER) for letters in told.verdicts.values())),
        "CHAIRi": captions["CHAIRi"],
        "CHAIRs": captions["CHAIRs"],
        "recall": captions["recall"],
        "words": mean_words(told.described.texts),
        "AMBER accuracy": told.amber(sheet),
        "odd colours: usual": None if colours is None else colours.usual,
        "odd colours: true": None if colours is None else colours.true,
        "departed: first words": told.first_departures(sheet),
        "departed: captions": told.caption_departures(sheet),
        "forwards a token": None if told.price is None else told.price.forwards,
        "ms a token": None if told.price is None else told.price.milliseconds_a_token,
    }


def differences(sheet: Sheet, this: SheetAnswers, other: SheetAnswers) -> dict[str, Difference]:
    """This method minus the other, on the same scenes."""
    found = {}
    for name, (group, figure) in PAIRED.items():
        ours, theirs = (told.tally_captions(sheet) if group is None else told.tally(sheet, group) for told in (this, other))
        found[name] = compare(ours, theirs).differences[figure]
    return found


def rivals_of(results: Mapping[str, Result], rivals: Sequence[tuple[str, str]] = RIVALS) -> list[str]:
    """Names of the settings that all others are compared with: those chosen for each (family, purpose), if present."""
    found = [
        name
        for family, purpose in rivals
        for name, result in results.items()
        if result.chosen.family == family and purpose in result.chosen.purposes
    ]
    return list(dict.fromkeys(found))


def paired(
    sheet: Sheet, results: Mapping[str, Result], rivals: Sequence[tuple[str, str]] = RIVALS
) -> dict[str, dict[str, dict[str, Difference]]]:
    """By rival, then by method, then by figure."""
    return {
        rival: {name: differences(sheet, result.told, results[rival].told) for name, result in results.items() if name != rival}
        for rival in rivals_of(results, rivals)
    }
