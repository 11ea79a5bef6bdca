"""The example of the representation analysis runs, and a contrast moves states where MGAP does not."""

import importlib.util
from pathlib import Path

import mgap

EXAMPLE = Path(__file__).parents[2] / "examples" / "representation" / "pocket.py"


def test_the_example_measures_a_pocket_model():
    spec = importlib.util.spec_from_file_location("representation_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = example.measure(mgap.load("pocket/llava"), ["mgap", "blind"], scenes=6, captions=2, strengths=(1.0,))
    mine, other = (line.figures["outside_share"].value for line in found.shifts)
    assert mine < 1e-3 < 0.1 < other
    assert {line.reference for line in found.oracle} == {"aligned", "other answer", "teacher", "other step"}
