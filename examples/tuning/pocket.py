"""Compares MGAP settings chosen without labels and with labels, on scenes that neither saw: the tables of docs/tuning.md.

    python examples/tuning/pocket.py --model pocket/llava --out runs/tuning

Settings are chosen on development scenes, half of which give the bank of plain states, and judged once on test scenes against
the same bank. States are saved in the folder, so another null image or rule needs no further pass through the model.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.pocket.benchmark import TEST, calibration_prompts
from mgap.pocket.samples import pope_samples
from mgap.priors.bank import Bank
from mgap.tuning.choice import RULES
from mgap.tuning.development import States, pocket_questions, read_rows, read_states
from mgap.tuning.sweep import Grid, Point
from mgap.tuning.tables import spell
from mgap.tuning.tune import Judged, decide

PLAIN, PAPER = Point(0.0, 0.5, 5), Point(0.75, 0.5, 5)
SHOWN = ("f1", "accuracy", "departed")


def load_states(model, rows, folder, read):
    """Load the states of these rows from the folder, or read and save them."""
    questions = [[row.image, row.prompt] for row in rows]
    if (folder / "bank.json").is_file():
        bank = Bank.load(folder)
        bank.require(model.backbone)
        assert bank.origin["rows"] == questions, f"{folder} holds states of other questions: name another --out"
        return bank.states
    states = read()
    Bank.of(states, identity=model.backbone.identity, origin={"rows": questions}).save(folder)
    return states


def line(name, each, *others):
    """A row of the table: percent with 95% intervals, and paired differences from others."""
    rates, cells = each.rates(), [name, spell(each.point)]
    cells += [str(rates[key]) for key in SHOWN]
    for other in others:
        change = each.less(other)["f1"]
        cells.append(f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]")
    return "| " + " | ".join(cells) + " |"


def compare(model, null_image, folder, *, scenes=300, test_scenes=300, grid=None, k=10, batch_size=60, tell=print):
    """The figures of each choice on the test scenes, by name."""
    development = pocket_questions(scenes)

    def read():
        found = read_states(model, development, batch_size=batch_size)
        return torch.cat([found.bank, found.judged])

    rows, size = [*development.bank_rows, *development.rows], len(development.bank_rows)
    both = load_states(model, rows, folder / "development", read)
    states = States(both[:size], both[size:], batch_size)
    prior = mgap.Subspace.fit(model, calibration_prompts(50), 10, null_image=null_image)
    tried = Judged(model, prior, development, states, (grid or Grid()).points(), k=k)
    tell(f"{model.backbone.name}, {null_image}, {scenes} development scenes, F1, accuracy, states outside:")
    tell(line("plain", tried.figures(0)))
    points = {"plain": PLAIN, "paper": PAPER}
    for rule in RULES:
        tuned = decide(tried, rule)
        points[rule] = tuned.picked.point
        tell(line(rule, tuned.picked), f"allowed outside: {100 * tuned.about['outside']['limit']:.1f}")

    test = pope_samples(SPLITS, test_scenes, first=TEST)
    shown = replace(development, benchmark=test, judged=test.samples)
    test_states = load_states(model, shown.rows, folder / "test", lambda: read_rows(model, shown.rows, test, batch_size))
    judged = Judged(model, prior, shown, replace(states, judged=test_states), list(points.values()), k=k)
    figures = {name: judged.figures(place) for place, name in enumerate(points)}
    tell(f"{test_scenes} test scenes, F1, accuracy, states outside, F1 less plain, F1 less labels:")
    for name, each in figures.items():
        tell(line(name, each, figures["plain"], figures["labels"]))
    (folder / f"{null_image}.json").write_text(json.dumps({name: each.to_json() for name, each in figures.items()}, indent=1))
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava")
    parser.add_argument("--null-image", nargs="+", default=["black336", "mean_colour"])
    parser.add_argument("--scenes", type=int, default=300, help="of the development; half of them for the bank")
    parser.add_argument("--test-scenes", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    loaded = mgap.load(args.model)
    for each in args.null_image:
        compare(loaded, each, args.out / Path(args.model).name, scenes=args.scenes, test_scenes=args.test_scenes)
