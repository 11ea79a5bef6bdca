"""The bench that counts operations: it runs, and what it counts is there."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from mgap.methods.kinds.branch import PairedMethod
from mgap.registry import METHODS

pytestmark = pytest.mark.long

FILE = Path(__file__).parents[2] / "bench" / "launches.py"


@pytest.fixture(scope="module")
def launches():
    spec = importlib.util.spec_from_file_location("bench_launches", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def rows_of(text):
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("name", ["llava", "qwen3-vl"])
def test_it_prints_a_row_for_vanilla_and_for_every_way_of_a_method(launches, capsys, name):
    launches.main(
        ["--model", name, "--layers", "6", "--methods", "vcd", "dola", "--short", "2", "--more", "2", "--rounds", "1"]
    )
    rows = rows_of(capsys.readouterr().out)
    assert set(rows) == {"method", "vanilla", "vcd, batched", "vcd, sequential", "dola"}
    operations = {way: int(row[0]) for way, row in rows.items() if way != "method"}
    assert operations["vanilla"] < operations["vcd, batched"] < operations["vcd, sequential"]
    assert rows["vanilla"][2] == "+0"


def test_no_method_with_a_branch_waits_more_than_vanilla(launches, capsys):
    names = [name for name in launches.all_names() if issubclass(METHODS.get(name.split()[0]), PairedMethod)]
    names.remove("tether")  # looks through a bank, and has to know what it found before it goes on
    launches.main(["--layers", "3", "--methods", *names, "--short", "2", "--more", "2", "--rounds", "0"])
    for table in capsys.readouterr().out.split("blocks")[1:]:
        rows = rows_of(table)
        assert len(rows) == 2 + 2 * len(names)
        assert {way: row[3] for way, row in rows.items() if way != "method"} == dict.fromkeys(
            [way for way in rows if way != "method"], rows["vanilla"][3]
        )


def test_waits_are_counted_and_views_are_no_kernels(launches):
    x = torch.arange(6.0)
    with launches.counting() as count:
        x.view(2, 3).transpose(0, 1)
    assert (count.operations, count.kernels, count.waits) == (2, 0, 0)
    for wait in (
        lambda: x[0].item(),
        lambda: bool(x[0]),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.nonzero(),
        lambda: x[torch.ones(6, dtype=torch.bool)],
    ):
        with launches.counting() as count:
            wait()
        assert count.waits == 1


def test_a_step_needs_a_prompt_before_it(launches):
    with pytest.raises(launches.SettingError, match="at least 2"):
        launches.main(["--short", "1"])
