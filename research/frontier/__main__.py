"""`python -m research.frontier choose MODEL --out FOLDER`, then `report MODEL --out FOLDER`; `ceiling MODEL --out FOLDER`.

`choose` tries the settings of every family on development scenes; `report` measures the chosen ones once, on other scenes. Both
save as they go and resume where they stopped; processes with families of their own (`--family`) may share a folder. `ceiling`
shows how well a linear probe of a state could answer, and `thresholds` whether a constant would have answered as well as each
method of the report; both need scikit-learn. `draw CHOSEN ... --out FOLDER` plots all settings that were tried.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mgap.decoding.model import load
from mgap.errors import MgapError
from mgap.io.output_folder import check_folder, write_files
from mgap.io.progress import bars
from mgap.io.strict_json import load_json
from mgap.pocket.benchmark import REPORT as FIRST
from research.frontier import choosing, reporting, tables
from research.frontier.contenders import FAMILIES, PLAIN, take

CHOOSE = {"scenes": 300, "captions": 200, "fit": 400, "judge": 400}
REPORT = {"scenes": 1000, "held-out": 500, "captions": 500, "amber": 500, "colours": 4000}
CEILING = {"scenes": 300, "reported": 500}
CEILING_FILE, MARGINS_FILE = "ceiling.json", "margins.json"
HELP = {
    "scenes": "for pocket-POPE",
    "captions": "to describe",
    "fit": "for what methods are fitted on",
    "judge": "for the plain states that departures are from",
    "held-out": "for pocket-POPE in the held-out style",
    "amber": "for pocket-AMBER's questions",
    "colours": "searched for oddly coloured things",
    "reported": "for pocket-POPE that probes are scored on",
}


def parse() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.frontier", description="Compare methods on a pocket model.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, sizes, what in (
        ("choose", CHOOSE, "try settings on development scenes"),
        ("report", REPORT, "measure those that were chosen, once, on other scenes"),
        ("ceiling", CEILING, "how well probes that are taught the truth answer, layer by layer"),
    ):
        of = verbs.add_parser(verb, help=what, description=what)
        of.add_argument("model", help="pocket/llava, pocket/qwen3-vl, or a folder")
        of.add_argument("--out", type=Path, required=True, help="folder for what is found")
        families = ", ".join(contender.family for contender in FAMILIES)
        if verb != "ceiling":
            of.add_argument("--family", action="append", help=f"only this one and {PLAIN} (repeatable): {families}")
        for name, size in sizes.items():
            of.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"scenes {HELP[name]} (default {size})")
        if verb == "report":
            of.add_argument("--choices", type=Path, help="folder of `choose`, if it is another; precision may differ from it")
            of.add_argument("--first", type=int, default=FIRST, help="seed of the first scene; another one is another report")
            of.add_argument(
                "--priced", type=int, default=reporting.PRICED, metavar="N", help="captions decoded one by one for the cost"
            )
        if verb == "ceiling":
            of.add_argument("--layers", type=int, metavar="N", help="probe the last N only, the head's input among them")
        of.add_argument("--batch-size", type=int, default=64)
        of.add_argument("--device")
        of.add_argument("--dtype", default="float32", help="bfloat16 gives yes and no equal logits now and then")
    what = "whether a constant does as well as each method, from the files of report and ceiling"
    of = verbs.add_parser("thresholds", help=what, description=what)
    of.add_argument("--out", type=Path, required=True, help="folder of a report and a ceiling of as many scenes")
    of = verbs.add_parser("draw", help="draw all that was tried", description="draw all that was tried")
    of.add_argument("chosen", nargs="+", type=Path, help="folders of choose, one a model")
    of.add_argument("--out", type=Path, required=True, help="folder for the figure")
    return parser


def run(args: argparse.Namespace) -> None:
    contenders = take(args.family)
    is_choice = args.verb == "choose"
    files = [choosing.FILE] if is_choice else [reporting.ANSWERS, tables.REPORT_FILE, tables.TABLES]
    check_folder(args.out, files)
    choices = None if is_choice else choosing.Choices.load(args.choices or args.out)
    if choices is not None and args.family is None:
        contenders = [contender for contender in contenders if contender.family in choices.tried]
    model = load(args.model, device=args.device, dtype=args.dtype)
    sizes = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name in (CHOOSE if is_choice else REPORT)}
    with bars() as progress:
        if choices is None:
            made = choosing.choose(
                model, contenders, args.out, **sizes, batch_size=args.batch_size, progress=progress, log=print
            )
            chosen = {contender.family: made.tried[contender.family].chosen for contender in contenders}
            print("\n".join(f"{family}: {labels}" for family, labels in chosen.items()))
        else:
            how = {**sizes, "first": args.first, "priced": args.priced, "batch_size": args.batch_size}
            sheet, answers = reporting.report(model, contenders, choices, args.out, **how, progress=progress, log=print)
            print(tables.write_report(args.out, choices, sheet, answers))


def run_ceiling(args: argparse.Namespace) -> None:
    if find_spec("sklearn") is None:
        raise MgapError("probes need scikit-learn, which is not installed: pip install scikit-learn")
    from research.frontier.ceiling import measure_ceiling

    check_folder(args.out, [CEILING_FILE, MARGINS_FILE])
    model = load(args.model, device=args.device, dtype=args.dtype)
    with bars() as progress:
        ceiling = measure_ceiling(model, args.scenes, args.reported, args.layers, batch_size=args.batch_size, progress=progress)
    texts = {CEILING_FILE: json.dumps(ceiling.to_json(), indent=1), MARGINS_FILE: json.dumps(ceiling.plain_margins)}
    write_files(args.out, {name: text + "\n" for name, text in texts.items()})
    shown = {
        **{f"probe of layer {layer}": of for layer, of in ceiling.probes.items()},
        **{f"probe of the margins {names}": of for names, of in ceiling.margins.items()},
        "plain": ceiling.plain,
        "plain, best threshold": ceiling.best_threshold,
    }
    for name, of in shown.items():
        print(f"{name}: " + ", ".join(f"{split} F1 {rate}" for split, rate in of.items()))


def run_thresholds(args: argparse.Namespace) -> None:
    from research.frontier import thresholds

    answers = reporting.Answers.load(args.out)
    margins = load_json(args.out / MARGINS_FILE)
    found = thresholds.compare_with_constants(reporting.sheet_of(answers), answers, margins)
    table = thresholds.table(found)
    write_files(
        args.out, {"thresholds.json": json.dumps(thresholds.to_json(found), indent=1) + "\n", "thresholds.md": table + "\n"}
    )
    print(table)


def run_draw(args: argparse.Namespace) -> None:
    from research.frontier.drawing import draw_frontier

    chosen = [choosing.Choices.load(folder) for folder in args.chosen]
    for path in draw_frontier({choices.about["model"]: choices for choices in chosen}).save(args.out):
        print(path)


def main(words: Sequence[str] | None = None) -> None:
    parser = parse()
    try:
        args = parser.parse_args(words)
        {"ceiling": run_ceiling, "thresholds": run_thresholds, "draw": run_draw}.get(args.verb, run)(args)
    except MgapError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
