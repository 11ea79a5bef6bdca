"""Exact search: against scikit-learn's, its bound against what is computed, blocks, parts and repeats; and on a GPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from mgap.errors import SettingError
from mgap.priors import neighbours
from mgap.priors.manifold import member_distances, neighbour_distances, threshold
from mgap.priors.neighbours import METRICS, ExactSearch, error_bound, full_precision


def drawn(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clusters(n, d, seed=0):
    """Tight ones, far from the origin and from one another."""
    centres = 100 + 10 * drawn(5, d, seed)
    return centres[torch.arange(n) % 5] + 0.01 * drawn(n, d, seed + 1)


def repeated(n, d, seed=0):
    return drawn(n // 3 + 1, d, seed).repeat(3, 1)[:n]


DATA = {"plain": drawn, "clusters": clusters, "repeated": repeated}


def found_by_scikit_learn(bank, states, k, metric):
    """d_k in float64; states None: of the members, which scikit-learn does not count among their own neighbours."""
    search = NearestNeighbors(n_neighbors=k, algorithm="brute", metric=metric).fit(bank.double().numpy())
    return search.kneighbors(None if states is None else states.double().numpy())[0].mean(1)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("n", "d", "k"), [(10, 3, 2), (300, 7, 10), (500, 600, 5), (200, 64, 150)])
def test_distances_and_threshold_are_scikit_learns(n, d, k, data, dtype, metric):
    bank, states = DATA[data](n, d).to(dtype), DATA[data](20, d, seed=5).to(dtype)
    found = neighbour_distances(states, bank, k, metric)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    close = {"rel": 1e-5, "abs": 1e-9 if metric == "euclidean" else 1e-13}  # cosines near 1: what scikit-learn's own are off by
    if data != "plain":
        close["abs"] = 1e-5
    assert found.tolist() == pytest.approx(found_by_scikit_learn(bank, states, k, metric).tolist(), **close)
    expected = torch.from_numpy(found_by_scikit_learn(bank, None, k, metric))
    assert member_distances(bank, k, metric).tolist() == pytest.approx(expected.tolist(), **close)
    assert threshold(bank, k, 0.1, metric) == pytest.approx(float(expected.quantile(0.9)), **close)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("data", DATA)
def test_parts_and_blocks_do_not_change_what_is_found(data, metric, monkeypatch):
    bank, states = DATA[data](97, 12).float(), DATA[data](9, 12, seed=7).float()
    expected = (
        ExactSearch.of(bank, metric).nearest(states, 4),
        ExactSearch.of(bank, metric).nearest_to_members(torch.arange(97), 4),
    )
    for name, few in {"_BLOCK": 120, "_QUERIES": 50, "_PRODUCTS": 33, "_GATHERED": 500, "_COLUMNS": 5}.items():
        monkeypatch.setattr(neighbours, name, few)
    search = ExactSearch.of(bank.split([1, 40, 6, 50]), metric)
    for (apart, rows), (right, _) in zip(
        (search.nearest(states, 4), search.nearest_to_members(torch.arange(97), 4)), expected, strict=True
    ):
        torch.testing.assert_close(apart, right, rtol=1e-12, atol=1e-14)
        assert all(len(set(row)) == 4 for row in rows.tolist())
    _, rows = search.nearest_to_members(torch.arange(97), 4)
    assert not (rows == torch.arange(97).unsqueeze(1)).any()


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 4), st.sampled_from(METRICS))
def test_states_of_one_group_are_no_neighbours_of_each_other(seed, together, k, metric):
    bank = drawn(40, 5, seed)
    groups = torch.arange(40) // together
    found, which = ExactSearch.of((bank[:13], bank[13:]), metric, groups=groups).nearest_to_members(torch.arange(40), k)
    assert not (groups[which] == groups.unsqueeze(1)).any()
    for row in range(0, 40, 7):
        others = bank[groups != groups[row]]
        expected = found_by_scikit_learn(others, bank[row : row + 1], k, metric)
        torch.testing.assert_close(found[row].mean(), torch.as_tensor(expected).double().mean(), rtol=1e-5, atol=1e-6)


def test_groups_that_leave_too_few_others_are_refused():
    search = ExactSearch.of(drawn(10, 3), groups=torch.tensor([0] * 6 + [1] * 4))
    with pytest.raises(SettingError, match="from 1 to 4"):
        search.nearest_to_members(torch.arange(10), 5)
    with pytest.raises(SettingError, match="name the group of each"):
        ExactSearch.of(drawn(10, 3), groups=torch.arange(9))


def test_nothing_larger_than_a_block_is_made(monkeypatch):
    """Every tensor that an operation of the search gives is counted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            inputs = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
            for tensor in made if isinstance(made, (tuple, list)) else [made]:
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                    self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
            return made

    bank, states = drawn(5000, 64).bfloat16(), drawn(300, 64, seed=1).float()
    for name in ("_BLOCK", "_QUERIES", "_PRODUCTS", "_GATHERED"):
        monkeypatch.setattr(neighbours, name, 1 << 13)
    search = ExactSearch.of(bank)
    assert search.centre.shape == (64,)  # of up to 4096 states, once
    with Largest() as largest:
        search.nearest(states[:200], 5)
        search.nearest_to_members(torch.arange(100), 5)
    assert 1 << 13 <= largest.numbers <= 1 << 14


@given(st.integers(0, 1000), st.integers(1, 700), st.sampled_from([1e-25, 1e-3, 1.0, 1e8]), st.sampled_from(["mixed", "alike"]))
def test_what_is_computed_stays_within_the_bound(seed, d, scale, kind):
    """|s|^2 - 2 h.s in float32, against float64; of numbers of one sign, whose errors add up, too."""
    states, members = (scale * (drawn(n, d, seed + n) if kind == "mixed" else 1 + drawn(n, d, seed).abs()) for n in (6, 9))
    states, members = states.float(), members.float()
    with full_precision(torch.device("cpu")):
        norms = neighbours._norms(members)
        a = neighbours._products(states, members, norms).double()
    exact = members.double().square().sum(-1) - 2 * states.double() @ members.double().T
    sizes = (some.double().norm(dim=-1) for some in (states, members))
    h, s = next(sizes).unsqueeze(1), next(sizes)
    assert ((a - exact).abs() <= error_bound(h, s, d, torch.float32)).all()
    assert (error_bound(h, s, d, torch.float32) < 1e-4 * (h + s) ** 2 + 1e-30).all(), "and the bound says something"


@given(st.integers(0, 1000), st.sampled_from(list(DATA)), st.sampled_from([1e-30, 1e-3, 1.0, 1e15, 1e25]), st.integers(0, 2))
def test_a_choice_that_is_not_proved_is_made_again(seed, data, scale, margin):
    """No candidates to spare, numbers whose squares are none in float32: the nearest are found all the same."""
    bank, states = (scale * DATA[data](60, 6, seed + n).float() for n in (0, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "_MARGIN", margin)
        apart, _ = ExactSearch.of(bank).nearest(states[:8], 1)
    expected = torch.cdist(states[:8].double(), bank.double(), compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    torch.testing.assert_close(apart[:, 0], expected, rtol=2.0**-22, atol=0)


def test_each_way_to_search_is_taken_where_it_is_needed(monkeypatch):
    """Apart by more than the bound: float32 products prove it; by less: float64's; by less than that: differences."""
    ways = []
    candidates, differences = ExactSearch._candidates, ExactSearch._by_differences
    monkeypatch.setattr(ExactSearch, "_candidates", lambda self, *args: ways.append(args[3]) or candidates(self, *args))
    monkeypatch.setattr(
        ExactSearch, "_by_differences", lambda self, *args: ways.append("differences") or differences(self, *args)
    )
    bank = drawn(200, 16).float()
    ExactSearch.of(bank).nearest(bank[:5] + 0.01, 3)
    assert ways == [torch.float32]
    ways.clear()
    close = torch.cat((bank, bank[:1] + 1e-4 * drawn(50, 16, seed=2).float()))
    ExactSearch.of(close).nearest(bank[:1] + 1e-4, 3)
    assert ways == [torch.float32, torch.float64]
    ways.clear()
    closer = torch.cat((bank.double(), bank[:1].double() + 1e-9 * drawn(50, 16, seed=2)))
    apart, _ = ExactSearch.of(closer).nearest(bank[:1].double() + 1e-9, 3)
    assert ways == [torch.float32, torch.float64, "differences"]
    right = (closer - bank[:1].double() - 1e-9).norm(dim=-1).sort().values[:3]
    torch.testing.assert_close(apart[0], right, rtol=1e-6, atol=0)


def test_half_precision_elsewhere_does_not_reach_the_search():
    bank, states = drawn(400, 300).float(), drawn(10, 300, seed=1).float()
    expected = neighbour_distances(states, bank)
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(neighbour_distances(states, bank), expected)
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def test_progress_goes_from_block_to_block_and_ends_at_all(monkeypatch):
    monkeypatch.setattr(neighbours, "_BLOCK", 40)
    monkeypatch.setattr(neighbours, "_QUERIES", 60)
    seen = []
    ExactSearch.of(drawn(50, 4)).nearest_to_members(torch.arange(30), 3, progress=lambda *at: seen.append(at))
    assert seen == sorted(seen)
    assert seen[-1] == (30, 30)
    assert len(set(seen)) >= 10


def test_states_and_parts_that_do_not_fit_are_refused():
    for bank, why in (
        ((), "give some rows"),
        (torch.zeros(3), "give some rows"),
        ((torch.zeros(2, 3), torch.zeros(2, 4)), "one width"),
        ((torch.zeros(2, 3), torch.zeros(2, 3).double()), "one width, dtype"),
    ):
        with pytest.raises(SettingError, match=why):
            ExactSearch.of(bank)
    with pytest.raises(SettingError, match=r"give \[n, 3\]"):
        neighbour_distances(torch.zeros(1, 4), torch.zeros(2, 3), 1)
    assert neighbour_distances(torch.zeros(0, 3), torch.zeros(2, 3), 1).shape == (0,)


@pytest.mark.gpu
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_finds_the_same_with_a_bank_there_or_moved_in_blocks(dtype, data, metric, monkeypatch):
    bank, states = DATA[data](3000, 300).to(dtype), DATA[data](200, 300, seed=9).float()
    expected = (
        ExactSearch.of(bank, metric).nearest(states, 10)[0],
        ExactSearch.of(bank, metric).nearest_to_members(torch.arange(500), 10)[0],
    )
    precision = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        for free in (None, 0):
            if free is not None:
                monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
                monkeypatch.setattr(neighbours, "_BLOCK", 1 << 17)
            search = ExactSearch.of(bank, metric, "cuda")
            assert search.parts[0].is_cuda == (free is None)
            found = search.nearest(states.cuda(), 10)[0], search.nearest_to_members(torch.arange(500), 10)[0]
            assert found[0].is_cuda
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.cpu(), other, rtol=2.0**-22, atol=1e-13)
    finally:
        torch.backends.cuda.matmul.fp32_precision = precision
