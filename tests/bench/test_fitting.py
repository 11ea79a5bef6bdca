"""The benchmark of fitting runs anywhere and fills its tables."""

import runpy
from pathlib import Path

import pytest

from mgap.priors.spectrum import SOLVERS

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


def cells(out, heading):
    """The lines of the table below a heading, without its head."""
    lines = out[out.index(heading) :].splitlines()[2:]
    table = lines[: lines.index("") if "" in lines else None]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_benchmark_of_fitting_fills_every_table(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    script = runpy.run_path(str(BENCH / "fitting.py"))
    options = "--counts 20 90 --widths 64 --few 4 --prompts 12 --sizes 2 4 --rounds 2 --patience 1"
    script["main"]([*options.split(), "--model", "tiny-llava", "--device", "cpu", "--devices", "cpu"])
    out = capsys.readouterr().out
    solvers = cells(out, "Solvers on cpu")
    assert [line[:3] for line in solvers] == [[n, "64", solver] for n in ("20", "90") for solver in SOLVERS]
    bounds = [float(line[6]) for line in solvers if line[2] == "exact"]
    assert bounds == pytest.approx([20 * 20 * 64, 90 * 64 * 64], rel=0.05)
    for line in solvers:
        assert float(line[5]) < (0.1 if line[2] == "randomized" else 1e-9), "off the right directions"
        assert all(float(cell) >= 0 for cell in line[3:])
    few = cells(out, "tiny-llava in float32: states of 4 prompts")
    assert [line[0] for line in few][-1] == "packed behind one picture"
    assert all(float(line[-1]) < 1e-3 for line in few), "packed or not, a prompt's state is the same"
    assert [line[0] for line in cells(out, "Packed prompts by batch size")] == ["2", "4"]
    many = cells(out, "Fitting on 12 prompts")
    assert [line[0] for line in many] == [
        "forwards",
        *(f"gathering and spectrum, {svd}" for svd in SOLVERS),
        "Subspace.fit, exact",
    ]
    assert all(float(line[2]) > 0 for line in many)
