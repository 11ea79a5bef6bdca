"""How the scripts of bench/ time things: turns, pairs and limits. No time is asserted."""

import gc
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    yield import_module("measure")
    sys.modules.pop("measure", None)


def test_every_way_takes_its_turn_in_every_round_and_each_round_begins_with_another(measure):
    order = []
    ways = {name: lambda name=name: order.append(name) for name in "abc"}
    rounds = measure.in_turns(ways, 4, clock=lambda call: call() or 1.0, seldom={"c": 2})
    assert order == [*"abc", *"bca", *"ab", *"ba"]
    assert [set(found) for found in rounds] == [set("abc"), set("abc"), set("ab"), set("ab")]


def test_a_limit_drops_the_seldom_ways_first_and_then_ends(measure, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def take(seconds):
        now[0] += seconds
        return seconds

    ways = {"often": lambda: take(1), "seldom": lambda: take(5)}
    rounds = measure.in_turns(ways, 1000, clock=lambda call: call(), seldom={"seldom": 500}, limit_s=15)
    assert [set(found) for found in rounds] == [{"often", "seldom"}] * 2 + [{"often"}] * 3
    assert now == [15]


def test_ratios_are_of_the_same_round(measure):
    rounds = [{"plain": 1.0, "slow": 2.0}, {"plain": 10.0, "slow": 30.0}, {"plain": 5.0}]
    assert measure.ratios(rounds, "slow", "plain") == [2.0, 3.0]
    assert measure.column(rounds, "plain") == [1.0, 10.0, 5.0]
    assert measure.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    assert measure.spread([7.0]).text(1, "x") == "7.0x (7.0 to 7.0)"


def test_nothing_is_collected_while_a_way_is_timed(measure):
    rounds = measure.in_turns({"a": gc.isenabled}, 1, clock=lambda call: call())
    assert rounds == [{"a": False}]
    assert gc.isenabled()


def test_bandwidth_is_measured_and_versions_are_named(measure):
    speed = measure.bandwidth("cpu", 1 << 20)
    assert speed.copied > 0
    assert speed.read > 0
    assert speed.best == max(speed)
    assert "torch" in measure.about("cpu")
    assert measure.table(["a", "b"], [[1, 2]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
