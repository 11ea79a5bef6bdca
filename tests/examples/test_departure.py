"""The example behind docs/departure.md runs, and its records give its counts again."""

import importlib.util
import json
from pathlib import Path

import mgap
from mgap.reports.records import Record, read_lines
from mgap.scoring.departure import departures

EXAMPLE = Path(__file__).parents[2] / "examples" / "departure" / "pocket.py"


def test_the_example_counts_departures_of_a_pocket_model(tmp_path):
    spec = importlib.util.spec_from_file_location("departure_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    said = []
    found = example.measure(
        mgap.load("pocket/llava"), ["vanilla", "mgap", "blind"], tmp_path, scenes=3, strengths=(0.0, 1.0),
        tell=lambda *parts: said.append(" ".join(parts)),
    )  # fmt: skip
    assert len(said) == 3
    assert list(found["vanilla"]) == ["0"]
    assert found["blind"]["1"] > found["mgap"]["1"]
    tau = json.loads((tmp_path / "departure.json").read_text())["departure"]["tau"]
    for name, counts in found.items():
        assert departures(map(Record.of, read_lines(tmp_path / f"{name}.jsonl")), tau) == counts
