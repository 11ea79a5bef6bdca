"""bench/step.py runs where there is no GPU, says what it leaves out, and compares on a card."""

import runpy
from pathlib import Path

import pytest

TINY = ["--vocabularies", "96", "500", "--batches", "1", "3", "--width", "32", "--wide", "16", "--rounds", "2"]


@pytest.fixture
def main():
    return runpy.run_path(str(Path(__file__).parents[2] / "bench" / "step.py"))["main"]


def rows(out):
    return [line.strip("| ").split(" | ") for line in out.splitlines() if line[:3].strip("| ").isdigit()]


def test_on_a_cpu_only_the_plain_step_is_measured(main, capsys):
    main([*TINY, "--device", "cpu"])
    out, err = capsys.readouterr()
    assert "the plain step only" in out
    assert [cells[:3] for cells in rows(out)] == [
        ["96", "1", "5"],
        ["96", "3", "5"],
        ["500", "1", "5"],
        ["500", "3", "5"],
        ["500", "3", "16"],
    ]
    assert all(float(cells[4]) > 0 and set(cells[5:]) == {"-"} for cells in rows(out))
    assert "size 5 of 5" in err


def test_the_fused_step_on_a_cpu_is_refused(main, capsys):
    with pytest.raises(SystemExit):
        main([*TINY, "--device", "cpu", "--ways", "fused"])
    assert "needs --device cuda" in capsys.readouterr().err


@pytest.mark.gpu
def test_on_a_card_all_ways_are_measured(main, capsys):
    main(TINY)
    measured = rows(capsys.readouterr().out)
    assert len(measured) == 5
    assert all(len(way.split(" / ")) == 3 for cells in measured for way in cells[4:7])
