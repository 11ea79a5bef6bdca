"""Search through an index: what it says of its error is true, no member finds itself, what cannot be done is refused."""

import runpy
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from mgap.errors import MissingExtra, SettingError
from mgap.priors import faiss_index
from mgap.priors import manifold as manifolds
from mgap.priors.bank import Bank
from mgap.priors.faiss_index import ApproximateSearch, SearchError, sample_rows
from mgap.priors.manifold import METRICS, Manifold, interval, member_distances, threshold
from mgap.priors.neighbours import ExactSearch


def states(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(12, d, generator=torch.Generator().manual_seed(99))
    return torch.randn(n, 12, generator=generator) @ mix + 0.1 * torch.randn(n, d, generator=generator) + 5


@pytest.fixture(scope="module", params=METRICS)
def through(request):
    return ApproximateSearch.of(ExactSearch.of(states(3000, 300).split([1000, 2000]), request.param), 10)


def test_what_an_index_says_of_its_error_is_true(through):
    members = sample_rows(3000, 384, seed=1)
    tested = members[torch.randperm(384, generator=torch.Generator().manual_seed(1))][128:]
    near, rows = through.nearest_to_members(tested, 10)
    right, nearest = through.exact.nearest_to_members(tested, 10)
    off = near.mean(-1) / right.mean(-1) - 1
    found = [len(set(mine) & set(theirs)) for mine, theirs in zip(rows.tolist(), nearest.tolist(), strict=True)]
    assert through.error.queries == 256
    assert through.error.found == pytest.approx(sum(found) / 2560)
    assert through.error.mean == pytest.approx(float(off.mean()), abs=1e-12)
    assert through.error.worst == pytest.approx(float(off.max()), abs=1e-12)
    assert 0.97 <= through.error.found <= 1


def test_an_index_that_looks_through_few_cells_says_that_it_misses_some(monkeypatch):
    monkeypatch.setattr(faiss_index, "TARGET_RECALL", 0.0)  # content with the fewest cells
    through = ApproximateSearch.of(ExactSearch.of(states(3000, 40)), 10)
    assert through.error.found < 0.9
    assert 0 < through.error.mean < through.error.worst


def test_distances_are_never_too_small_and_a_member_never_finds_itself(through):
    members = torch.arange(0, 3000, 7)
    near, rows = through.nearest_to_members(members, 10)
    right, _ = through.exact.nearest_to_members(members, 10)
    assert not (rows == members.unsqueeze(1)).any()
    assert (near >= right * (1 - 1e-9)).all()
    near, _ = through.nearest(through.exact.rows(members), 10)
    assert near[:, 0].max() < 1e-12  # from elsewhere, a member's state is found


def test_an_equal_state_elsewhere_is_a_neighbour():
    bank = states(800, 20).repeat_interleave(2, 0)
    near, rows = ApproximateSearch.of(ExactSearch.of(bank), 1).nearest_to_members(torch.arange(1600), 1)
    assert not near.any()
    assert torch.equal(rows.squeeze(1), torch.arange(1600) ^ 1)


def test_cells_that_hold_too_few_are_made_up_for_by_exact_search(monkeypatch):
    monkeypatch.setattr(faiss_index, "TARGET_RECALL", 0.0)
    exact = ExactSearch.of(states(1000, 8))
    through = ApproximateSearch.of(exact, 10)
    through.index.nprobe = 1
    near, rows = through.nearest(states(20, 8, seed=2), 400)
    right, _ = exact.nearest(states(20, 8, seed=2), 400)
    torch.testing.assert_close(near, right)
    assert (rows >= 0).all()


def test_a_manifold_through_an_index_states_its_error_and_is_the_same_each_time():
    bank, seen = Bank.of(states(2000, 64)), []
    manifold = Manifold.of(bank, search="approximate", progress=lambda *at: seen.append(at))
    told = manifold.to_json()
    assert told["search"] == "approximate"
    assert told["error"] == asdict(manifold.error)
    assert Manifold.of(bank, search="approximate").to_json() == told
    assert told["tau"] == pytest.approx(threshold(bank.states), rel=0.01)
    stages = dict.fromkeys(stage for stage, _, _ in seen)
    assert list(stages) == ["states put into an index", "members searched for exactly", "members measured for tau"]
    assert seen[-1] == ("members measured for tau", 2000, 2000)
    assert manifold.distances(states(5, 64, seed=3)).shape == (5,)


def test_auto_takes_an_index_for_large_banks_on_a_cpu_and_says_so_where_it_cannot(monkeypatch):
    bank = Bank.of(states(1500, 16))
    assert Manifold.of(bank).error is None
    monkeypatch.setattr(manifolds, "_LARGE", 1000)
    assert isinstance(Manifold.of(bank).error, SearchError)
    assert Manifold.of(bank, search="exact").error is None
    monkeypatch.setattr(manifolds, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"1500 states of width 16 are searched exactly.*mgap\[neighbours\]"):
        assert Manifold.of(bank).error is None


def test_without_faiss_an_index_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"faiss-cpu.*mgap\[neighbours\]"):
        Manifold.of(Bank.of(states(1500, 16)), search="approximate")


def test_states_of_one_group_are_no_neighbours_through_an_index_either():
    groups = torch.arange(2000) // 40
    exact = ExactSearch.of(states(2000, 12), groups=groups)
    made, members = ApproximateSearch.of(exact, 5), torch.arange(0, 2000, 50)
    near, which = made.nearest_to_members(members, 5)
    assert not (groups[which] == groups[members].unsqueeze(1)).any()
    truth, _ = exact.nearest_to_members(members, 5)
    assert (near >= truth - 1e-9).all()
    assert (near <= truth[:, -1:] + 1e-9).double().mean() > 0.95


def test_an_index_of_few_states_or_for_a_gpu_is_refused():
    with pytest.raises(SettingError, match="1000 states, not 999"):
        Manifold.of(Bank.of(states(999, 4)), search="approximate")
    with pytest.raises(SettingError, match="on a GPU use search='exact'"):
        ApproximateSearch.of(ExactSearch((torch.zeros(2000, 2),), "euclidean", torch.device("cuda"), torch.arange(2000)), 3)
    with pytest.raises(SettingError, match="choose from auto, exact, approximate"):
        Manifold.of(Bank.of(states(20, 4)), search="hnsw")


def test_tau_of_a_large_bank_is_over_members_drawn_from_it(monkeypatch):
    monkeypatch.setattr(manifolds, "MEMBERS", 500)
    bank = Bank.of(states(2000, 6))
    manifold = Manifold.of(bank, delta=0.1)
    sample = sample_rows(2000, 500, seed=0)
    assert len(set(sample.tolist())) == 500
    apart = member_distances(bank.states)
    assert manifold.tau == pytest.approx(float(apart[sample].quantile(0.9)))
    assert manifold.tau == Manifold.of(bank, delta=0.1).tau == threshold(bank.states, 10, 0.1)
    assert manifold.to_json()["members"] == 500
    low, high = manifold.interval
    assert low < float(apart.quantile(0.9)) < high


def test_the_interval_holds_the_quantile_19_times_in_20():
    generator, held = torch.Generator().manual_seed(0), 0
    for _ in range(1000):
        low, high = interval(torch.rand(200, generator=generator), 0.9)
        held += low <= 0.9 <= high
    assert 940 <= held <= 985  # at least 95%: ranks are whole numbers


def test_too_few_values_have_no_upper_end():
    assert interval(torch.tensor([2.0, 1.0, 3.0]), 0.95) == (2.0, None)
    assert interval(torch.tensor([2.0, 1.0, 3.0]), 0.05) == (0.0, 2.0)
    scipy = pytest.importorskip("scipy.stats")
    low, high = interval(torch.arange(1, 10001.0), 0.95)
    assert (low, high) == (scipy.binom.ppf(0.025, 10000, 0.95), scipy.binom.ppf(0.975, 10000, 0.95) + 1)


def test_the_benchmark_measures_both_searches(capsys):
    script = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "neighbours.py"))
    script["main"](["--states", "1500", "--width", "32", "--queries", "40", "--rank", "8", "--dtype", "bfloat16"])
    out, err = capsys.readouterr()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["search", "exact", "approximate"]
    assert {len(row) for row in rows} == {7}
    assert float(rows[1][5]) == 0
    assert float(rows[2][5]) < 0.2
    assert "1500 states of width 32 in bfloat16" in out
    assert "index, on members: queries 256" in out
    assert "members measured for tau: 1500 of 1500" in err
