import csv
import importlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.pages.print_figures import FORMATS

pytestmark = pytest.mark.long

SMALL = [
    *("--device", "cpu", "--models", "tiny-llava", "tiny-qwen3-vl", "--batch", "2", "1", "--tokens", "12", "--rounds", "1"),
    *(
        "--length",
        "4",
        "8",
        "--k",
        "1",
        "4",
        "--step-vocabulary",
        "128",
        "--vocabulary",
        "64",
        "256",
        "--step-batches",
        "1",
        "3",
    ),
    *("--width", "32", "--n", "10", "40", "--bank", "100", "300", "--bank-width", "16", "--queries", "20"),
]


@pytest.fixture(scope="module")
def bench():
    """The scripts, as `python bench/growth.py` sees them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
        yield importlib.import_module("growth"), importlib.import_module("growth_points")


def test_every_axis_is_measured_and_drawn_from_its_file(bench, tmp_path, capsys):
    script, points = bench
    given = script.read_arguments(SMALL)
    measured = script.measure(given, lambda some: points.write(tmp_path / "growth.json", {"run": "here and now"}, some))
    _, found = points.read(tmp_path / "growth.json")
    assert found == measured
    curves = points.curves(found)
    ways = {axis: {way for a, _, way in curves if a == axis} for axis in script.AXES}
    assert ways["batch"] == {"vanilla", "mgap", "vcd", "first token"}
    assert ways["length"] == {"vanilla", "mgap"}
    assert ways["k"] == ways["vocabulary"] == {"eager, batch 1", "eager, batch 3"}
    assert ways["n"] == {"fit"}
    assert ways["bank"] == {"tau", "d_k"}
    assert {model for axis, model, _ in curves if axis in ("batch", "length")} == {"tiny-llava", "tiny-qwen3-vl"}
    for (axis, _, _), some in curves.items():
        assert [point.x for point in some] == sorted(getattr(given, axis))
        assert all(0 < point.low <= point.ms <= point.high for point in some)
    assert all((point.ratio is None) == (point.way == "first token") for point in found if point.axis in ("batch", "length"))
    kept = [point.mib for point in curves["k", "", "eager, batch 1"]]
    assert kept == [4 * rank * (32 + 128) / 2**20 for rank in (1, 4)], "a table [K, vocab] and a basis [d, K] in float32"

    capsys.readouterr()
    script.main(["--from", str(tmp_path / "growth.json"), "--out", str(tmp_path / "drawn")])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(told) == 1 + len(curves) + sum(any((point.mib or 0) > 0 for point in some) for some in curves.values())
    names = {f"{name}.{form}" for name in ("growth-decoding", "growth-parts") for form in FORMATS}
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == names
    rows = list(csv.DictReader((tmp_path / "drawn" / "growth-decoding.csv").read_text().splitlines()))
    drawn = {(row["axis"], row["model"], row["way"], float(row["x"])): float(row["value"]) for row in rows}
    wanted = [point for point in found if point.axis in ("batch", "length") and point.way != "first token"]
    assert drawn == {(p.axis, p.model, p.way, p.x): p.ms for p in wanted}


def test_mgap_acts_in_its_own_turns_only(bench):
    script, _ = bench
    decoding = importlib.import_module("growth_decoding")
    model = decoding.Bench("tiny-llava", script.build("tiny-llava", "cpu"), 1e9)
    calls, hook = [], model.hook
    model.hook = lambda *args: calls.append(args[2].shape) or hook(*args)
    answer = model.answer(2, 12, decoding.BOTH, static=False)
    steps = {way: [step.number for step in answer.steps if step.way == way] for way in (decoding.FIRST, *decoding.BOTH)}
    assert steps == {"first token": [0], "vanilla": [1, 2, 5, 6, 9, 10], "mgap": [3, 4, 7, 8]}, "the last has no next"
    assert len(calls) == len(steps["mgap"]) + 1
    assert {shape[0] for shape in calls} == {2}
    assert not model.backbone.head_module._forward_hooks, "nothing stays on the model"


def test_larger_fits_are_left_out_beyond_the_patience_and_that_is_said(bench, tmp_path, capsys):
    script, points = bench
    script.main([*SMALL, "--axes", "n", "--patience", "0", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    about, found = points.read(tmp_path / "growth.json")
    assert [(point.axis, point.x) for point in found] == [("n", 10)]
    assert about["run"] in out
    assert "n: fit of 10 took 0 s; larger ones are left out (--patience)" in out
    assert "one point only" in out


@given(slope=st.floats(1e-3, 1e3), places=st.lists(st.integers(1, 10**6), min_size=2, max_size=8, unique=True))
def test_a_line_through_the_origin_is_linear(bench, slope, places):
    _, points = bench
    xs = sorted(places)
    found = points.growth(xs, [slope * x for x in xs])
    assert found.kind == "linear"
    assert found.b == pytest.approx(slope)
    assert found.exponent == pytest.approx(1)


@given(level=st.floats(1e-3, 1e6), places=st.lists(st.integers(1, 10**6), min_size=2, max_size=8, unique=True))
def test_a_constant_is_flat(bench, level, places):
    _, points = bench
    found = points.growth(sorted(places), [level] * len(places))
    assert found.kind == "flat"
    assert found.a == pytest.approx(level)
    assert (found.b, found.exponent) == pytest.approx((0, 0), abs=1e-9)


def test_a_fixed_part_and_a_linear_one_are_between_and_told_apart(bench):
    _, points = bench
    xs = [1, 2, 4, 8, 16, 32, 64]
    found = points.growth(xs, [20 + 0.5 * x for x in xs])
    assert found.kind == "between"
    assert (found.a, found.b) == pytest.approx((20, 0.5))
    assert found.text() == "between: 20 + 0.5 x (R2 1.000), exponent 0.37"
    assert points.growth(xs, [x**2 for x in xs]).kind == "steeper"
    assert points.growth(xs, [1 / x for x in xs]).kind == "falling"
    assert points.growth([1], [1.0]) is None


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"about": {}, "points": [{"axis": "k"}]})])
def test_a_file_of_something_else_is_refused_by_name(bench, tmp_path, text):
    script, _ = bench
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(SystemExit, match=r"other\.json: no measurements of growth .*; give a growth\.json that --out wrote"):
        script.main(["--from", str(tmp_path / "other.json")])
