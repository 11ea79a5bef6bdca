"""Figures of states: means and quotients of sums, drawn by picture, and back from JSON."""

import json

import pytest
import torch

from mgap.benchmarks.statistics import Rate, wilson
from mgap.diagnosis.representation import Line, Representation, figures
from mgap.errors import CorruptFile
from mgap.types import Sample

SAMPLES = [Sample(str(n), f"{n // 2}.png", "?", "", "yes") for n in range(6)]  # two a picture
ONES = torch.ones(6)


def test_a_mean_is_the_mean_and_its_interval_comes_from_pictures():
    same_within = torch.tensor([1.0, 1.0, 2.0, 2.0, 6.0, 6.0])
    same_across = torch.tensor([1.0, 5.0, 1.0, 5.0, 1.0, 5.0])
    found = figures(SAMPLES, {"a": (same_within, ONES), "b": (same_across, ONES)})
    assert (found["a"].value, found["a"].of) == (3.0, 6)
    assert found["a"].low < 2 < 4 < found["a"].high
    assert found["b"] == Rate(3.0, 3.0, 3.0, 6)  # every picture has the same mean


def test_a_quotient_is_of_the_sums_and_rows_without_weight_do_not_count():
    part, whole = torch.tensor([1.0, 0, 0, 0, 0, 9]), torch.tensor([2.0, 0, 0, 0, 0, 18])
    found = figures(SAMPLES, {"held": (part, whole), "none": (ONES * 0, ONES * 0)})
    assert found["held"] == Rate(0.5, 0.5, 0.5, 2)  # no draw is without a weight
    assert found["none"] == Rate(0.0, 0.0, 1.0, 0)


def test_a_share_of_0_or_1_has_wilsons_interval_and_a_length_of_0_or_1_none():
    found = figures(SAMPLES, {"holds": (ONES, ONES), "contains": (0 * ONES, ONES), "inside": (0 * ONES, ONES)})
    assert found["holds"] == wilson(6, 6)
    assert found["contains"] == wilson(0, 6)
    assert found["inside"] == Rate(0.0, 0.0, 0.0, 6)


def test_a_measurement_comes_back_from_json():
    rates = {"inside": Rate(0.5, 0.25, 0.75, 4)}
    shifts, oracle = (Line("vcd", 0.5, rates),), (Line("mgap", 1.0, rates, "aligned", "wrong"),)
    made = Representation("pocket/llava", 256, 5, 60, 10, {"right": 3, "wrong": 1, "unclear": 0}, shifts, oracle, ("A note.",))
    data = json.loads(json.dumps(made.to_json()))
    assert Representation.from_json(data) == made
    for damaged in ({}, {**data, "more": 1}, {**data, "shifts": [{"method": "vcd"}]}, {**data, "counts": None}):
        with pytest.raises(CorruptFile, match="measure it again"):
            Representation.from_json(damaged)
