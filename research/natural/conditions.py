"""`python -m research.natural.conditions MODEL --choices FOLDER --out FOLDER`: harder pictures, and shorter training.

Every method has the settings that `research.frontier choose` chose for the usual pictures and the finished model: those for
questions answer questions, those for captions describe and name colours. MGAP is also measured as published. What a method
learns is learnt from the model that is measured. Conditions are saved as they are done, and are not measured again:

    --difficulty noise=0.1       a knob of mgap.pocket.difficulty (repeatable); the model is the same
    --step 250                   MODEL is the folder of a checkpoint after as many steps

`--draw` makes the two figures from the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mgap.benchmarks.statistics import Rate
from mgap.decoding.model import Model
from mgap.errors import CorruptFile, MgapError, SettingError, one_line
from mgap.io.progress import Progress, bars
from mgap.io.strict_json import load_json
from mgap.io.typed_json import BROKEN, typed
from mgap.methods.base import Method
from mgap.pocket.benchmark import REPORT
from mgap.pocket.difficulty import LIMITS, USUAL, Difficulty
from mgap.run.first_words import CachingEncoder
from research.frontier.choosing import Choices, about, check_about
from research.frontier.contenders import CAPTIONS, PLAIN, PUBLISHED, QUESTIONS, take
from research.frontier.kit import Kit
from research.frontier.measures import HARDEST, SceneCaptions, Sheet, SheetAnswers, ask, describe, name_colours
from research.frontier.shared_files import add_to_file
from research.natural.checkpoints import load_trained

FILE = "conditions.json"
AS_USUAL = "usual"  # the condition's name
SERIES = {  # label -> the family, and its purposes for questions and for captions
    "plain": (PLAIN, QUESTIONS, CAPTIONS),
    "MGAP, published": ("mgap", PUBLISHED, PUBLISHED),
    "MGAP": ("mgap", QUESTIONS, CAPTIONS),
    "bias": ("bias", QUESTIONS, None),
    "VCD": ("vcd", QUESTIONS, CAPTIONS),
    "blind": ("blind", QUESTIONS, CAPTIONS),
    "prompt prior": ("prompt-prior", QUESTIONS, CAPTIONS),
}
SIZES = {"scenes": 300, "captions": 300, "colours": 2000, "fit": 400}


@dataclass(frozen=True)
class Measured:
    """One method under one condition; None: it leaves such answers alone, or nothing was chosen for them."""

    f1: Rate | None  # on adversarial questions
    random_f1: Rate | None
    chair_i: Rate | None
    recall: Rate | None  # of captions
    usual_colour: Rate | None  # share of oddly coloured things that are given their usual colour
    true_colour: Rate | None


@dataclass(frozen=True)
class Conditions:
    """All that was measured: by condition, then by label of SERIES."""

    about: dict[str, Any]  # model, precision, sizes and seeds, and the settings of SERIES
    found: dict[str, dict[str, Measured]]

    @classmethod
    def load(cls, folder: Path) -> Conditions:
        try:
            conditions: Conditions = typed(cls, load_json(folder / FILE))
        except BROKEN as error:
            raise CorruptFile(f"{folder / FILE}: no conditions ({one_line(error)}); name another folder") from error
        return conditions

    def add(self, folder: Path, name: str, measured: dict[str, Measured]) -> Conditions:
        """Save one more, beside those that other processes have saved there meanwhile; return all of them."""
        return add_to_file(folder / FILE, self, Conditions.load, lambda now: replace(now, found={**now.found, name: measured}))


def measure_condition(
    model: Model,
    choices: Choices,
    difficulty: Difficulty,
    sizes: Mapping[str, int],
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> dict[str, Measured]:
    """Every series of SERIES on report scenes of this difficulty."""
    how: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
    kit, families = Kit(model, scenes=sizes["fit"], **how), {contender.family: contender for contender in take()}
    asked: dict[str, Any] = {name: sizes[name] for name in ("scenes", "captions", "colours")}
    sheet = Sheet.of(REPORT, difficulty=difficulty, **asked)

    def make(family: str, purpose: str | None) -> Method | None:
        return families[family].setting(choices.tried[family].chosen[str(purpose)]).make(kit)

    def is_chosen(family: str, purpose: str | None) -> bool:
        return purpose in choices.tried[family].chosen

    answering = {label: make(family, purpose) for label, (family, purpose, _) in SERIES.items()}
    encode = CachingEncoder()
    letters = ask(model, sheet, answering, encode=encode, **how)
    found = {}
    for label, (family, _, purpose) in SERIES.items():
        told = SheetAnswers(letters[label], SceneCaptions([], [], None), None)
        rates = {name: told.tally(sheet, split).rates()["f1"] for name, split in (("f1", HARDEST), ("random_f1", "random"))}
        measured = Measured(**rates, chair_i=None, recall=None, usual_colour=None, true_colour=None)
        if is_chosen(family, purpose) and sheet.coloured is not None:
            method = make(family, purpose)
            captions = describe(model, method, sheet.described, encode=encode, **how)
            colours = name_colours(model, method, sheet.coloured, encode=encode, **how)
            told = replace(told, described=captions, colours=colours)
            chair, named = told.tally_captions(sheet).rates(), told.score_colours(sheet)
            measured = replace(measured, chair_i=chair["CHAIRi"], recall=chair["recall"])
            if named is not None:
                measured = replace(measured, usual_colour=named.usual, true_colour=named.true)
        found[label] = measured
    return found


def facts(model: Model, choices: Choices, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What all conditions of a file share. Checkpoints of a training run count as one model."""
    families = dict.fromkeys(family for family, _, _ in SERIES.values())
    return {**about(model, sizes), "chosen": {family: choices.tried[family].chosen for family in families}}


def parse_condition(words: str) -> tuple[str, Difficulty]:
    """`noise=0.1` as a condition's name and the difficulty."""
    knob, _, value = words.partition("=")
    if knob not in LIMITS or not value:
        raise SettingError(f"{words!r} is no difficulty: give one such as noise=0.1; knobs: {', '.join(LIMITS)}")
    try:
        return f"{knob} {float(value):g}", Difficulty.of({knob: float(value)})
    except ValueError:
        raise SettingError(f"{words!r}: {value!r} is no number") from None


def main() -> None:
    parser = argparse.ArgumentParser(description="Methods on harder pictures, and along training.")
    parser.add_argument("model", help="pocket/natural, or the folder of a checkpoint of its training")
    parser.add_argument("--choices", type=Path, required=True, help="folder of `research.frontier choose`")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {FILE} and the figures")
    parser.add_argument("--difficulty", action="append", help="such as noise=0.1; by default the usual pictures (repeatable)")
    parser.add_argument("--step", type=int, help="the model is a checkpoint after this many steps")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw what has been measured")
    parser.add_argument("--language-model", type=Path, help="SmolLM2's GGUF file; by default it is fetched")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"scenes (default {size})")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="bfloat16")
    try:
        run(parser.parse_args())
    except MgapError as error:
        parser.exit(2, f"{error}\n")


def run(args: argparse.Namespace) -> None:
    """Draw, or measure what has not been measured yet."""
    if args.draw:
        from research.natural.conditions_figure import draw_conditions

        for figure in draw_conditions(Conditions.load(args.out)):
            print(*figure.save(args.out), sep="\n")
        return
    wanted = dict([parse_condition(words) for words in args.difficulty or []]) or {AS_USUAL: USUAL}
    if args.step is not None and args.difficulty:
        raise SettingError("--step is measured on the usual pictures: leave out --difficulty, or --step")
    if args.step is not None:
        wanted = {f"step {args.step}": USUAL}
    choices = Choices.load(args.choices)
    model = load_trained(args.model, args.language_model, device=args.device, dtype=args.dtype)
    sizes = {name: getattr(args, name) for name in SIZES}
    conditions = Conditions(facts(model, choices, sizes), {})
    if (args.out / FILE).exists():
        conditions, current = Conditions.load(args.out), conditions.about
        check_about(args.out / FILE, conditions.about, current)
    with bars() as progress:
        for name, difficulty in wanted.items():
            if name not in conditions.found:
                options: dict[str, Any] = {"batch_size": args.batch_size, "progress": progress}
                measured = measure_condition(model, choices, difficulty, sizes, **options)
                conditions = conditions.add(args.out, name, measured)
            print(f"{name}: measured", flush=True)


if __name__ == "__main__":
    main()
