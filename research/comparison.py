"""`python -m research.comparison MODEL --out FOLDER`: every published method on pocket-POPE and pocket-CHAIR.

Methods have their default settings: the published ones, if any. The bias and a second row of MGAP have the settings that the
rule of figures.py picked on development scenes; ASD's vectors and the predicted prior's map are fitted on such scenes. Each
preset of `given` has evidence from stand-ins that know the scenes. Results are saved after every method, and a method in the
file is not measured again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mgap.benchmarks.chair.scorer import ChairScore
from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.pope.scorer import PopeScore
from mgap.decoding.model import Model, load
from mgap.errors import CorruptFile, MgapError, SettingError, one_line
from mgap.io.output_folder import check_folder, write_files
from mgap.io.progress import Progress, bars
from mgap.io.regular_files import read_regular
from mgap.io.typed_json import BROKEN, typed
from mgap.methods.asd import ASD
from mgap.methods.base import Method
from mgap.methods.bias import Bias
from mgap.methods.given.given import Given
from mgap.methods.haltrapper.haltrapper import HalTrapper
from mgap.methods.mgap import MGAP
from mgap.methods.predicted_prior import PredictedPrior
from mgap.methods.yes_if_close import YesIfClose
from mgap.pocket.benchmark import TEST
from mgap.pocket.evaluation import evaluate_captions, evaluate_pope
from mgap.pocket.figures import CardFigures, PickedSetting, fit_prior, mgap_at
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from mgap.pocket.fit_map import fit_pocket_map
from mgap.pocket.fit_steering import fit_steering
from mgap.pocket.samples import chair_samples, pope_samples, scene_of
from mgap.pocket.stand_ins import stand_in_evidence
from mgap.priors.prior_plan import Priors
from mgap.registry import METHODS, locate
from mgap.run.method_plans import MethodPlan, build_method

FILE = "comparison.json"
PLAIN = "vanilla"
CHOSEN_IN_FRONTIER = ("prompt-prior", "tether")  # without defaults that are published: compared in research/frontier
GIVEN = {"convis": 5.0, "agla": 2.0, "halc": 5.0, "marine": 2.0, "cicd": 2.0}  # presets of `given`, and their forwards a token


@dataclass(frozen=True)
class Contender:
    """A method to measure. It is built just before, because some fit what they need."""

    label: str
    make: Callable[[Model, Progress | None], Method | None]
    forwards: float | None = None  # per token, if it is not what the method declares


@dataclass(frozen=True)
class Result:
    """The scores and costs of one method."""

    label: str
    forwards: float  # per token
    passed: int  # tokens through the decoder for the captions, including searches and fitting on attach
    pope: dict[str, PopeScore]  # by split
    captions: ChairScore


def contenders(choice: PickedSetting, *, few: bool, scenes: int = 500) -> dict[str, Contender]:
    """Every registered method by name, except CHOSEN_IN_FRONTIER; `given` by its presets, with evidence on `scenes` pictures.

    `few`: the model's family is one for which HalTrapper's authors take half as many candidates.
    """
    preset = "reference-code-5" if few else "reference-code"
    picked = f"alpha {choice.alpha:g}, {choice.null_image}"
    special = {
        PLAIN: Contender(PLAIN, lambda *_: None),
        "bias": Contender(f"bias (picked: {choice.shift:g})", lambda *_: Bias(shift=choice.shift)),
        **{preset: Contender(preset, lambda *_, preset=preset: YesIfClose(preset=preset)) for preset in YesIfClose.presets},
        "mgap": Contender("MGAP, paper", lambda model, progress: MGAP(fit_prior(model, progress=progress))),
        "mgap-picked": Contender(
            f"MGAP (picked: {picked})",
            lambda model, progress: mgap_at(fit_prior(model, choice.null_image, progress=progress), choice.alpha),
        ),
        "asd": Contender("asd", lambda model, progress: ASD(steering=fit_steering(model, progress=progress))),
        "predicted-prior": Contender(
            "predicted-prior", lambda model, progress: PredictedPrior(fit_pocket_map(model, progress=progress))
        ),
        # the pocket models garble the replies that HalTrapper prompts for: longer ones give no more candidates
        "haltrapper": Contender("haltrapper", lambda *_: HalTrapper(preset=preset, length=MAX_ANSWER_TOKENS)),
    }
    others = [name for name in METHODS.names() if name not in (*special, "given", *CHOSEN_IN_FRONTIER)]
    given = {preset: Contender(preset, _with_stand_ins(preset, scenes), forwards) for preset, forwards in GIVEN.items()}
    return special | {name: Contender(name, _by_name(name)) for name in others} | given


def _with_stand_ins(preset: str, scenes: int) -> Callable[[Model, Progress | None], Method | None]:
    """A preset of `given`, with evidence on test scenes."""

    def make(model: Model, _: Progress | None) -> Method:
        asked = pope_samples(SPLITS, scenes, first=TEST).samples + chair_samples(scenes, first=TEST).samples
        shown = [scene_of(name) for name in dict.fromkeys(sample.image for sample in asked)]
        evidence = stand_in_evidence(model, shown, length=MAX_ANSWER_TOKENS)
        return Given(evidence=evidence[preset], preset=preset)

    return make


def _by_name(name: str) -> Callable[[Model, Progress | None], Method | None]:
    """A method with its default settings; what it needs to have learnt is learnt from the model."""
    return lambda model, progress: build_method(MethodPlan.of(name), model, Priors(), progress)


def measure_method(
    model: Model,
    contender: Contender,
    *,
    scenes: int = 500,
    captions: int = 200,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Result:
    """Measure one method on test scenes; greedy, except for methods that search."""
    method = contender.make(model, progress)
    methods = {contender.label: method}
    pope = evaluate_pope(model, methods, TEST, scenes, batch_size=batch_size, progress=progress)
    with counting(model) as passed:
        captioned = evaluate_captions(
            model, methods, TEST, captions, max_new_tokens=MAX_ANSWER_TOKENS, batch_size=batch_size, progress=progress
        )
    return Result(
        label=contender.label,
        forwards=contender.forwards or (1.0 if method is None else method.forwards),
        passed=passed[0],
        pope={split: of[contender.label] for split, of in pope.items()},
        captions=captioned[contender.label].score,
    )


def all_tokens(states: Tensor, _call: Mapping[str, Any]) -> int:
    """The number of tokens in states [B, T, d]."""
    return states.shape[0] * states.shape[1]


@contextmanager
def counting(model: Model, weigh: Callable[[Tensor, Mapping[str, Any]], int] = all_tokens) -> Iterator[list[int]]:
    """Inside the block, the list's one number counts the tokens that go through the decoder, from any source.

    `weigh` may count something else per call of the first block, from its input states [B, T, d] and keyword arguments.
    """
    count = [0]

    def add(_block: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        count[0] += weigh(args[0] if args else kwargs["hidden_states"], kwargs)

    handle = model.backbone.layers[0].register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()


def load_results(folder: str | PathLike[str]) -> dict[str, Result]:
    """The results so far; empty without a file."""
    path = Path(folder) / FILE
    if not path.exists():
        return {}
    try:
        results: dict[str, Result] = typed(dict[str, Result], json.loads(read_regular(path).decode()))
        return results
    except BROKEN as error:
        raise CorruptFile(f"{path}: no results of a comparison ({one_line(error)}); name another folder") from error


def save_results(folder: str | PathLike[str], results: Mapping[str, Result]) -> None:
    write_files(folder, {FILE: json.dumps({name: asdict(result) for name, result in results.items()}, indent=1) + "\n"})


def table(results: Mapping[str, Result]) -> str:
    """A Markdown table in percent: one row per method, plain decoding first."""
    splits = list(next(iter(results.values())).pope)
    head = ("method", *(f"{split}: F1" for split in splits), f"{splits[-1]}: precision", f"{splits[-1]}: recall", "unparsed",
            "CHAIRi", "recall", "words", "forwards a token", "work")  # fmt: skip
    lines = [head, ("---",) * len(head)]
    for result in results.values():
        hardest, captions = result.pope[splits[-1]], result.captions
        lines.append(
            (
                result.label,
                *(str(result.pope[split].f1) for split in splits),
                str(hardest.precision),
                str(hardest.recall),
                str(sum(score.unparsed for score in result.pope.values())),
                str(captions.chair_i),
                str(captions.recall),
                f"{captions.words:.1f}",
                f"{result.forwards:g}",
                f"{result.passed / results[PLAIN].passed:.1f}" if PLAIN in results else "",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure every method on a pocket model.")
    parser.add_argument("model", help="pocket/llava, pocket/qwen3-vl, or a folder with figures.json")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {FILE}")
    parser.add_argument("--method", action="append", help="only this one (repeatable)")
    parser.add_argument("--scenes", type=int, default=500, help="test scenes for pocket-POPE")
    parser.add_argument("--captions", type=int, default=200, help="test scenes to describe")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device")
    try:
        run(parser.parse_args())
    except MgapError as error:
        parser.exit(2, f"{error}\n")


def run(args: argparse.Namespace) -> None:
    """Measure what is asked for and is not in the folder yet."""
    check_folder(args.out, [FILE])
    model = load(args.model, device=args.device)
    choice, few = CardFigures.load(locate(args.model)).choice, model.backbone.config.model_type.startswith("qwen")
    named = contenders(choice, few=few, scenes=max(args.scenes, args.captions))
    results = load_results(args.out)
    for name in args.method or named:
        if name not in named:
            raise SettingError(f"unknown method {name!r}: choose from {', '.join(named)}")
        if name in results:
            print(f"{name}: measured before")
            continue
        with bars() as progress:
            sizes = {"scenes": args.scenes, "captions": args.captions, "batch_size": args.batch_size}
            results[name] = measure_method(model, named[name], **sizes, progress=progress)
        results = {each: results[each] for each in named if each in results}
        save_results(args.out, results)
        print(f"{name}: measured", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
