"""`python -m research.comparison MODEL --out FOLDER`: every published method on pocket-POPE and pocket-CHAIR.

Methods have their default settings, which are the published ones where there are such. The bias, and a second row of MGAP, have
what the rule of figures.py picked on development scenes; ASD's vectors and the predicted prior's map are fitted on such scenes.
Results are written after every method, and a method that is in the file is not measured again.
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
from mgap.benchmarks.pope.scorer import PopeScore
from mgap.decoding.model import Model, load
from mgap.errors import CorruptFile, SettingError, one_line
from mgap.io.output_folder import check_folder, write_files
from mgap.io.progress import Progress, bars
from mgap.io.typed_json import BROKEN, typed
from mgap.methods.asd import ASD
from mgap.methods.base import Method
from mgap.methods.bias import Bias
from mgap.methods.haltrapper.haltrapper import HalTrapper
from mgap.methods.mgap import MGAP
from mgap.methods.predicted_prior import PredictedPrior
from mgap.pocket.benchmark import TEST
from mgap.pocket.evaluation import evaluate_captions, evaluate_pope
from mgap.pocket.figures import CardFigures, PickedSetting, fit_prior, mgap_at
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from mgap.pocket.fit_map import fit_pocket_map
from mgap.pocket.fit_steering import fit_steering
from mgap.priors.prior_plan import Priors
from mgap.registry import METHODS, locate
from mgap.run.method_plans import MethodPlan, build_method

FILE = "comparison.json"
PLAIN = "vanilla"
ELSEWHERE = ("prompt-prior", "tether")  # have no published settings: chosen and compared in pocket/frontier


@dataclass(frozen=True)
class Contender:
    """A method that will be measured; it is made when its turn comes, because some fit what they need."""

    label: str
    make: Callable[[Model, Progress | None], Method | None]


@dataclass(frozen=True)
class Result:
    """What came out of one method."""

    label: str
    forwards: float  # a token, as the method declares it
    passed: int  # tokens that went through the decoder for the captions, searches and fitting on attaching included
    pope: dict[str, PopeScore]  # by split
    captions: ChairScore


def contenders(choice: PickedSetting, *, few: bool) -> dict[str, Contender]:
    """Every registered method by name, but for ELSEWHERE.

    `few`: of a family for which HalTrapper's authors take half as many candidates.
    """
    preset = "reference-code-5" if few else "reference-code"
    picked = f"alpha {choice.alpha:g}, {choice.null_image}"
    special = {
        PLAIN: Contender(PLAIN, lambda *_: None),
        "bias": Contender(f"bias (picked: {choice.shift:g})", lambda *_: Bias(shift=choice.shift)),
        "mgap": Contender("MGAP, paper", lambda model, told: MGAP(fit_prior(model, progress=told))),
        "mgap-picked": Contender(
            f"MGAP (picked: {picked})",
            lambda model, told: mgap_at(fit_prior(model, choice.null_image, progress=told), choice.alpha),
        ),
        "asd": Contender("asd", lambda model, told: ASD(steering=fit_steering(model, progress=told))),
        "predicted-prior": Contender(
            "predicted-prior", lambda model, told: PredictedPrior(fit_pocket_map(model, progress=told))
        ),
        # the pocket models garble the replies that HalTrapper asks for: more tokens of them find no more
        "haltrapper": Contender("haltrapper", lambda *_: HalTrapper(preset=preset, length=MAX_ANSWER_TOKENS)),
    }
    others = [name for name in METHODS.names() if name not in (*special, *ELSEWHERE)]
    return special | {name: Contender(name, _by_name(name)) for name in others}


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
    """One method on test scenes, greedily but for methods that search."""
    method = contender.make(model, progress)
    each = {contender.label: method}
    pope = evaluate_pope(model, each, TEST, scenes, batch_size=batch_size, progress=progress)
    with counting(model) as passed:
        told = evaluate_captions(
            model, each, TEST, captions, max_new_tokens=MAX_ANSWER_TOKENS, batch_size=batch_size, progress=progress
        )
    return Result(
        label=contender.label,
        forwards=1.0 if method is None else method.forwards,
        passed=passed[0],
        pope={split: of[contender.label] for split, of in pope.items()},
        captions=told[contender.label].score,
    )


def all_tokens(states: Tensor, _call: Mapping[str, Any]) -> int:
    """Of states [B, T, d]."""
    return states.shape[0] * states.shape[1]


@contextmanager
def counting(model: Model, weigh: Callable[[Tensor, Mapping[str, Any]], int] = all_tokens) -> Iterator[list[int]]:
    """Inside the block, the one number in the list is how many tokens went through the decoder, whoever sent them.

    Or what else `weigh` makes of a call of the first block: of the states it reads [B, T, d], and of its named arguments.
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
    """What has been measured so far; empty without a file."""
    path = Path(folder) / FILE
    if not path.exists():
        return {}
    try:
        found: dict[str, Result] = typed(dict[str, Result], json.loads(path.read_text(encoding="utf-8")))
        return found
    except BROKEN as error:
        raise CorruptFile(f"{path}: no results of a comparison ({one_line(error)}); name another folder") from error


def save_results(folder: str | PathLike[str], results: Mapping[str, Result]) -> None:
    write_files(folder, {FILE: json.dumps({name: asdict(result) for name, result in results.items()}, indent=1) + "\n"})


def table(results: Mapping[str, Result]) -> str:
    """As Markdown, in percent: one row a method, plain decoding first."""
    splits = list(next(iter(results.values())).pope)
    head = ("method", *(f"{split}: F1" for split in splits), f"{splits[-1]}: precision", f"{splits[-1]}: recall", "unparsed",
            "CHAIRi", "recall", "words", "forwards a token", "work")  # fmt: skip
    lines = [head, ("---",) * len(head)]
    for result in results.values():
        hardest, told = result.pope[splits[-1]], result.captions
        lines.append(
            (
                result.label,
                *(str(result.pope[split].f1) for split in splits),
                str(hardest.precision),
                str(hardest.recall),
                str(sum(score.unparsed for score in result.pope.values())),
                str(told.chair_i),
                str(told.recall),
                f"{told.words:.1f}",
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
    given = parser.parse_args()
    check_folder(given.out, [FILE])
    model = load(given.model, device=given.device)
    all_of_them = contenders(
        CardFigures.load(locate(given.model)).choice, few=model.backbone.config.model_type.startswith("qwen")
    )
    results = load_results(given.out)
    for name in given.method or all_of_them:
        if name not in all_of_them:
            raise SettingError(f"unknown method {name!r}: choose from {', '.join(all_of_them)}")
        if name in results:
            print(f"{name}: measured before")
            continue
        with bars() as progress:
            sizes = {"scenes": given.scenes, "captions": given.captions, "batch_size": given.batch_size}
            results[name] = measure_method(model, all_of_them[name], **sizes, progress=progress)
        results = {known: results[known] for known in all_of_them if known in results}
        save_results(given.out, results)
        print(f"{name}: measured", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
