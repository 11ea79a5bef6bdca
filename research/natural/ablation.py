"""`python -m research.natural.ablation MODEL --out FOLDER`: MGAP without its parts, and along K and N.

As Tables 3, 4 and 8 of the paper, around two settings: the published one, and the null image and alpha that the model's card
picked on development scenes. All rows of the questions share one forward; captions are decoded row by row. Differences are
paired by scene, each row against the setting it is a variant of, and against plain decoding.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mgap.benchmarks.pope.questions import SPLITS
from mgap.benchmarks.statistics import Rate
from mgap.benchmarks.tally import Difference, Tally, compare
from mgap.decoding.model import Model
from mgap.io.output_folder import check_folder, write_files
from mgap.io.progress import Progress, bars
from mgap.methods.base import Method
from mgap.methods.bias import Bias
from mgap.methods.mgap import MGAP, PRESETS
from mgap.pocket.benchmark import REPORT, calibration_prompts
from mgap.pocket.figures import NULLS, CardFigures
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from mgap.pocket.samples import chair_samples, pope_samples
from mgap.priors.subspace import Subspace
from mgap.registry import POCKET_MODELS
from mgap.run.evaluate import answer_first_words, answer_in_full
from mgap.run.first_words import Methods
from research.frontier.tables import difference_text
from research.natural.checkpoints import load_trained

FILE, TABLE = "ablation.json", "ablation.md"
PLAIN, BIAS = "plain", "bias, picked"
PARTS: dict[str, dict[str, Any]] = {
    "w/o protection": {"protect": False},
    "w/o gate": {"gate": False},
    "w/o both": {"protect": False, "gate": False},
}
RANKS, COUNTS = (1, 3, 10), (10, 100, 200)  # other than 5 and 50


@dataclass(frozen=True)
class Row:
    """One variant: figures by split or "captions", and their differences from the setting it varies and from plain decoding."""

    varies: str  # the setting's name; its own for a setting, and for plain decoding
    figures: dict[str, dict[str, Rate]]
    from_setting: dict[str, dict[str, Difference]]
    from_plain: dict[str, dict[str, Difference]]


def variants(model: Model, alpha: float, null_image: str, *, batch_size: int, progress: Progress | None) -> dict[str, MGAP]:
    """A setting and what differs from it in one thing; the first has no name of its own."""

    def prior(rank: int = 5, count: int = 50) -> Subspace:
        report = None if progress is None else lambda done: progress(f"prompts, {null_image}", done, count)
        options: dict[str, Any] = {"null_image": null_image, "batch_size": batch_size, "progress": report}
        return Subspace.fit(model, calibration_prompts(count), rank=rank, **options)

    usual = prior()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="alpha=", category=UserWarning)  # above 1 is what was picked
        return {
            "": MGAP(usual, alpha=alpha),
            **{name: MGAP(usual, alpha=alpha, **parts) for name, parts in PARTS.items()},
            **{f"K = {rank}": MGAP(prior(rank=rank), alpha=alpha) for rank in RANKS},
            **{f"N = {count}": MGAP(prior(count=count), alpha=alpha) for count in COUNTS},
        }


def ablate(
    model: Model,
    settings: dict[str, tuple[float, str]],
    shift: float,
    *,
    scenes: int,
    captions: int,
    first: int = REPORT,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> dict[str, Row]:
    """Rows by name. `settings` are alpha and null image by name, `shift` is that of a bias; captions=0: questions alone."""
    how: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
    methods: dict[str, Method | None] = {PLAIN: None, BIAS: Bias(shift=shift)}
    varies = {PLAIN: PLAIN, BIAS: BIAS}
    for setting, (alpha, null_image) in settings.items():
        for name, method in variants(model, alpha, null_image, **how).items():
            label = f"{setting}, {name}" if name else setting
            methods[label], varies[label] = method, setting
    tallies = _tallies(model, methods, scenes, captions, first, how)

    def differences(name: str, other: str) -> dict[str, dict[str, Difference]]:
        return {group: compare(tally, tallies[other][group]).differences for group, tally in tallies[name].items()}

    return {
        name: Row(
            varies[name], {g: t.rates() for g, t in of.items()}, differences(name, varies[name]), differences(name, PLAIN)
        )
        for name, of in tallies.items()
    }


def _tallies(
    model: Model, methods: Methods, scenes: int, captions: int, first: int, how: dict[str, Any]
) -> dict[str, dict[str, Tally]]:
    asked = answer_first_words(model, pope_samples(SPLITS, scenes, first=first), methods, **how)
    tallies = {name: dict(asked.tallies(name)) for name in methods}
    if captions:
        shown = chair_samples(captions, first=first)
        speaking = {name: method for name, method in methods.items() if name != BIAS}  # which leaves captions alone
        told = answer_in_full(model, shown, speaking, max_new_tokens=MAX_ANSWER_TOKENS, label="captions", **how)
        for name in speaking:
            tallies[name] |= told.tallies(name)
    return tallies


def table(rows: dict[str, Row]) -> str:
    """Markdown in percent; differences are from the setting that a row varies, in bold where the interval leaves out 0."""
    hardest, described = SPLITS[-1], any("captions" in row.figures for row in rows.values())
    head = ["method", "random F1", f"{hardest} F1", "less the setting's", "less plain's"]
    head += ["CHAIRi", "less the setting's", "less plain's", "recall", "less plain's"] if described else []
    lines = [head, ["---"] * len(head)]
    for name, row in rows.items():
        cells = [name, str(row.figures["random"]["f1"]), str(row.figures[hardest]["f1"])]
        cells += [_difference(row.from_setting[hardest]["f1"]), _difference(row.from_plain[hardest]["f1"])]
        if described:
            if told := row.figures.get("captions"):
                setting, plain = row.from_setting["captions"], row.from_plain["captions"]
                cells += [str(told["CHAIRi"]), _difference(setting["CHAIRi"]), _difference(plain["CHAIRi"])]
                cells += [str(told["recall"]), _difference(plain["recall"])]
            else:
                cells += [""] * 5
        lines.append(cells)
    return "# MGAP without its parts, and along K and N\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _difference(found: Difference) -> str:
    return "" if found.value == found.low == found.high == 0 else difference_text(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="MGAP without its parts, and along K and N.")
    parser.add_argument("model", help="pocket/natural, or the folder of a checkpoint of its training")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {FILE} and {TABLE}")
    parser.add_argument("--scenes", type=int, default=1000, help="for questions")
    parser.add_argument("--captions", type=int, default=1000, help="scenes to describe; 0: none")
    parser.add_argument("--first", type=int, default=REPORT, help="seed of the first scene; another one is another report")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    check_folder(args.out, [FILE, TABLE])
    choice = CardFigures.load(POCKET_MODELS["pocket/natural"]).choice
    settings = {"published": (PRESETS["paper"]["alpha"], NULLS[0]), "picked": (choice.alpha, choice.null_image)}
    model = load_trained(args.model, device=args.device, dtype=args.dtype)
    sizes: dict[str, Any] = {name: getattr(args, name) for name in ("scenes", "captions", "first")}
    with bars() as progress:
        rows = ablate(model, settings, choice.shift, **sizes, batch_size=args.batch_size, progress=progress)
    content = {"dtype": args.dtype, **sizes, "rows": {name: asdict(row) for name, row in rows.items()}}
    write_files(args.out, {FILE: json.dumps(content, indent=1) + "\n", TABLE: table(rows)})
    print(table(rows))


if __name__ == "__main__":
    main()
