"""Settings of MGAP chosen without labels against those chosen with them, on scenes that neither saw: docs/tuning.md's table.

    python examples/tuning/pocket.py --model pocket/llava --null-image black336 --out runs/tuning

Chosen on development scenes, half of which give the bank of plain states; judged once on test scenes against the same bank.
States are kept in the folder, so that another null image, grid or rule costs no further pass through the model.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

import mgap
from mgap.decoding.sweep import Point
from mgap.pocket.benchmark import SPLITS, TEST, calibration_prompts
from mgap.pocket.samples import pope_samples
from mgap.run.development import States, pocket_questions, read_rows, read_states
from mgap.run.tuning import Judged, tune
from mgap.scoring.choice import RULES
from mgap.states.bank import Bank

PLAIN, PAPER = Point(0.0, 0.5, 5), Point(0.75, 0.5, 5)


def kept(model, rows, folder, read):
    """States of these rows from the folder, or read now and put there."""
    asked = [[row.image, row.prompt] for row in rows]
    if (folder / "bank.json").is_file():
        bank = Bank.load(folder)
        bank.require(model.backbone)
        assert bank.origin["rows"] == asked, f"{folder} holds states of other questions: name another --out"
        return bank.states
    states = read()
    Bank(states, model.backbone.identity, {"rows": asked}).save(folder)
    return states


def compare(model, null_image, folder, *, scenes=300, test_scenes=300, batch_size=60, tell=print):
    """By the name of each choice, what it is and its figures on the test scenes."""
    development = pocket_questions(scenes)
    known = [*development.bank_rows, *development.rows]

    def read():
        states = read_states(model, development, batch_size=batch_size)
        return torch.cat([states.bank, states.judged])

    both = kept(model, known, folder / "development", read)
    states = States(both[: len(development.bank_rows)], both[len(development.bank_rows) :], batch_size)
    prior = mgap.Subspace.fit(model, calibration_prompts(50), 10, null_image=null_image)
    points = {"plain": PLAIN, "paper": PAPER}
    for rule in RULES:
        tuned = tune(model, prior, development, states, rule=rule)
        points[rule] = tuned.picked.point
        told = {name: str(rate) for name, rate in tuned.picked.rates().items() if name in ("f1", "accuracy", "departed")}
        tell("development:", rule, tuned.picked.point, told, f"limit {tuned.about['outside']['limit']:.3f}", sep="\n  ")

    test = pope_samples(SPLITS, test_scenes, first=TEST)
    shown = replace(development, benchmark=test, judged=test.samples)
    asked = kept(model, shown.rows, folder / "test", lambda: read_rows(model, shown.rows, test, batch_size))
    judged = Judged(model, prior, shown, replace(states, judged=asked), list(points.values()))
    figures = {name: judged.figures(place) for place, name in enumerate(points)}
    found = {}
    for name, each in figures.items():
        rates = each.rates()
        row = {key: [rates[key].value, rates[key].low, rates[key].high] for key in ("f1", "accuracy", "departed")}
        for other in ("plain", "labels"):
            changes = each.less(figures[other])
            row[f"less {other}"] = {
                key: [changes[key].value, changes[key].low, changes[key].high] for key in row if key in changes
            }
        found[name] = {"setting": each.point.to_json(), "step": each.step, "turned": dict(each.turned), **row}
        tell("test:", name, each.point, *(f"{key}: {value}" for key, value in found[name].items()), sep="\n  ")
    (folder / f"{null_image}.json").write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava")
    parser.add_argument("--null-image", nargs="+", default=["black336", "mean_colour"])
    parser.add_argument("--scenes", type=int, default=300, help="of the development; half of them for the bank")
    parser.add_argument("--test-scenes", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    loaded = mgap.load(given.model)
    for each in given.null_image:
        compare(loaded, each, given.out / Path(given.model).name, scenes=given.scenes, test_scenes=given.test_scenes)
