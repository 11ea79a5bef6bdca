"""The example behind docs/tuning.md runs, keeps its states, and judges scenes that nothing was chosen on."""

import importlib.util
import json
from pathlib import Path

import mgap
from mgap.tuning.sweep import Grid

EXAMPLE = Path(__file__).parents[2] / "examples" / "tuning" / "pocket.py"


def test_the_example_holds_the_rules_against_each_other_on_test_scenes(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("tuning_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, said = mgap.load("pocket/llava"), []
    given = {"scenes": 4, "test_scenes": 2, "grid": Grid.of({"alpha": [3], "lam": [0.5], "rank": [1, 5]}), "k": 5}
    tell = lambda *parts: said.append(" ".join(map(str, parts)))  # noqa: E731
    found = example.compare(model, "black336", tmp_path, **given, tell=tell)
    assert list(found) == ["plain", "paper", "departure", "labels"]
    assert found["plain"].step == 0
    assert found["plain"].turned == {}
    assert {int(name[7:13]) // 1000 for name in found["labels"].labels.pictures} == {200}
    assert sum(line.startswith("| departure") for line in said) == 2
    kept = json.loads((tmp_path / "black336.json").read_text())
    assert kept["paper"]["alpha"] == 0.75
    monkeypatch.setattr(example, "read_states", None)  # a second time nothing is read
    monkeypatch.setattr(example, "read_rows", None)
    again = example.compare(model, "black336", tmp_path, **given, tell=tell)
    assert again["labels"].to_json() == found["labels"].to_json()
