"""The experiments that come with the package: each holds what the paper printed, and what is known about it."""

import json
import re

import pytest
import yaml

from mgap.registry import EXPERIMENTS, METHODS
from mgap.reports.published_figures import PublishedFigures
from mgap.run.config import Config

NAMES = {
    "pope-main": "tab:pope_main",
    "chair-main": "tab:chair_main",
    "ablation-pope": "tab:pope_ablation",
    "ablation-chair": "tab:chair_ablation",
    "amber": "tab:amber",
    "efficiency": "tab:efficiency",
    "departure": "tab:manifold",
    "sensitivity-k": "tab:sensitivity_pope",
    "sensitivity-n": "tab:sensitivity_pope",
    "sensitivity-alpha": "tab:alpha_sens",
    "sensitivity-lambda": "tab:lambda_sens",
    "vcd-degradation": "tab:pope_main",
}
BEYOND = ("departure-captions",)  # nothing of them is printed
PAPER = "paper/000_a4f8e244f4140842.txt"


def read(name):
    return yaml.safe_load(EXPERIMENTS[name].read_text(encoding="utf-8"))


def printed_numbers(tex, label):
    """Every number in the body of a table, in order; times in seconds, a dash as None."""
    start = tex.index(rf"\label{{{label}}}")
    body = tex[tex.index(r"\midrule", start) : tex.index(r"\end{tabular}", start)]
    body = re.sub(
        r"\\multirow\{\d+\}\{\*\}|blue!8|v1\.5 7B|Qwen3-VL 8B|\$[KN]\$|& (\d+)( \(Default\))? ?(?=&[^/&]*/)", "", body
    )
    found = re.findall(r"\d+(?::\d\d)+|\d+\.\d+|\d+|(?<=& )--", body)
    return [
        None if text == "--" else sum(60**n * float(part) for n, part in enumerate(text.split(":")[::-1])) for text in found
    ]


def in_printed_order(name, published):
    """The same numbers as the paper lays them out."""
    rows = [row for backbone in published.backbones for row in backbone.rows.values()]
    if name in ("chair-main", "ablation-chair"):  # a backbone beside the other
        left, right = (list(backbone.rows.values()) for backbone in published.backbones)
        rows = [row for pair in zip(left, right, strict=True) for row in pair]
    numbers = []
    for label, row in zip([label for b in published.backbones for label in b.rows], rows, strict=True):
        if name in ("sensitivity-alpha", "sensitivity-lambda"):
            numbers.append(float(label.split()[1]))
        if name in ("sensitivity-k", "sensitivity-n"):  # figure by figure, with the splits in it
            numbers += [values[column] for column in range(3) for values in row.figures.values()]
        else:
            numbers += [value for values in row.figures.values() for value in values]
    return numbers


def test_every_table_and_figure_is_there():
    assert set(EXPERIMENTS) == {*NAMES, *BEYOND}


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_names_real_methods_and_its_rows(name):
    data = read(name)
    published = PublishedFigures.of_json(data["published"])
    labels = [entry["label"] for entry in data["methods"]]
    assert len(set(labels)) == len(labels)
    assert all(entry["method"] == "vanilla" or entry["method"] in METHODS for entry in data["methods"])
    assert all(set(backbone.rows) <= set(labels) for backbone in published.backbones), "a printed row without a method"
    assert ("axis" in data) == any("x" in entry for entry in data["methods"])
    assert "Table" in data["title"] or "Figure" in data["title"]


@pytest.mark.parametrize("name", [*NAMES, *BEYOND])
def test_an_experiment_runs_on_drawn_and_on_real_pictures(name):
    drawn = Config.read(f"experiments/{name}.yaml")
    real = Config.read(name, model="llava-hf/llava-1.5-7b-hf", images="coco/val2014")
    assert (drawn.data_set, real.data_set) == ("pocket", "amber" if name == "amber" else "coco")
    assert not any("length" in plan.settings for plan in real.methods), "published settings hold there"


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_are_those_of_the_paper(name, shared):
    tex = (shared / PAPER).read_text(encoding="utf-8")
    printed, ours = printed_numbers(tex, NAMES[name]), in_printed_order(name, PublishedFigures.of_json(read(name)["published"]))
    if name == "vcd-degradation":
        printed = printed[:18]  # the first two rows
    if name in ("sensitivity-k", "sensitivity-n"):
        half = len(printed) // 2
        printed = printed[:half] if name == "sensitivity-k" else printed[half:]
    assert ours == printed


@pytest.mark.parametrize("name", [name for name, label in NAMES.items() if "pope" in label or "sens" in label])
def test_a_row_that_cannot_be_true_has_a_note(name, shared):
    rows = json.loads((shared / "specs/benchmarks/paper_pope_rows.json").read_text())
    known = {(row["backbone"], row["split"], row["acc"], row["prec"], row["f1"]): row["status"] for row in rows}
    for backbone in PublishedFigures.of_json(read(name)["published"]).backbones:
        for label, row in backbone.rows.items():
            for split, figures in row.figures.items():
                status = known[(backbone.name, split, *figures)]
                doubted = "inconsistent" in status or "off the" in status
                assert doubted == (f"{split}: accuracy" in row.note), (backbone.name, label, split, status)
