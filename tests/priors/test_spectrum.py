"""Principal directions: three solvers, one pass, bounded memory, and an error for everything that has no answer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mgap
from mgap.errors import DegenerateSubspace, NonFiniteStates, SettingError
from mgap.priors.spectrum import SOLVERS, CentredRows, GramSpectrum, auto_rank, lanczos, principal_directions, solve


def states(n, d, seed=0, signal=3):
    """Noise plus a few strong directions, off centre."""
    generator = torch.Generator().manual_seed(seed)
    strong = torch.randn(n, signal, generator=generator) * torch.linspace(8, 5, signal)
    directions = torch.linalg.qr(torch.randn(d, signal, generator=generator)).Q
    return strong @ directions.T + 0.1 * torch.randn(n, d, generator=generator) + 3.0


def exact_projector(rows, rank):
    rows = rows.double()
    right = torch.linalg.svd(rows - rows.mean(0), full_matrices=False).Vh[:rank]
    return right.T @ right


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("n", "d"), [(50, 64), (50, 400), (500, 32)])
def test_the_solvers_agree_on_the_projector(solver, n, d):
    rows = states(n, d)
    found = mgap.Subspace.from_states(rows, rank=3, svd=solver)
    torch.testing.assert_close(found.projector, exact_projector(rows, 3), rtol=0, atol=1e-8)
    torch.testing.assert_close(found.basis.T @ found.basis, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-10)


@given(st.integers(0, 1000), st.integers(3, 12), st.lists(st.integers(1, 40), min_size=2, max_size=12))
def test_chunks_of_any_size_give_what_one_block_gives(seed, d, sizes):
    rows = states(sum(sizes) + 3, d, seed, signal=2)
    whole = CentredRows(d)
    for chunk in rows.split([*sizes, 3]):
        whole.add(chunk)
        assert len(whole.matrix) <= whole.limit + 1
    reference = rows.double() - rows.double().mean(0)
    torch.testing.assert_close(whole.matrix.T @ whole.matrix, reference.T @ reference, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(whole.mean, rows.double().mean(0), rtol=1e-10, atol=1e-10)


def test_memory_does_not_grow_with_the_number_of_states():
    rows, largest = CentredRows(16), 0
    reference = torch.zeros(16, 16, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        chunk = torch.randn(100, 16, generator=generator, dtype=torch.float64)
        rows.add(chunk)
        largest = max(largest, sum(map(len, rows._blocks)))
        reference += chunk.T @ chunk
    assert rows.count == 200_000
    assert largest <= rows.limit + 1
    expected = reference - rows.count * torch.outer(rows.mean, rows.mean)
    torch.testing.assert_close(rows.matrix.T @ rows.matrix, expected, rtol=1e-9, atol=1e-6)


@given(st.integers(0, 1000), st.integers(8, 60), st.integers(8, 60), st.floats(0, 5), st.integers(1, 7))
def test_the_exact_solver_gives_what_a_singular_value_decomposition_gives(seed, n, d, decades, rank):
    """Also where singular values fall over decades, which squaring the matrix would cost their last digits."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(size, 8, generator=generator, dtype=torch.float64)).Q for size in (n, d))
    matrix = left * torch.logspace(0, -decades, 8, dtype=torch.float64) * torch.linspace(2, 1, 8) @ right.T
    values, vectors = solve(matrix, rank)
    _, expected, axes = torch.linalg.svd(matrix, full_matrices=False)
    torch.testing.assert_close(values[: rank + 1], expected[: rank + 1], rtol=1e-9, atol=0)
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=2e-7)
    assert bool((values.diff() <= 1e-12).all())
    torch.testing.assert_close(vectors[:, :rank] @ vectors[:, :rank].T, axes[:rank].T @ axes[:rank], rtol=0, atol=1e-8)


def test_lanczos_counts_its_products_with_the_matrix():
    matrix = states(60, 40).double()
    values, vectors, products = lanczos(matrix, 4)
    torch.testing.assert_close((matrix @ vectors).norm(dim=0), values)
    torch.testing.assert_close(values, torch.linalg.svdvals(matrix)[:4])
    assert products >= 2 * 4


@pytest.mark.gpu
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("n", "d"), [(50, 400), (3000, 64)])
def test_a_card_finds_the_same_directions(solver, n, d):
    rows = states(n, d)
    found = mgap.Subspace.from_states(rows.split(100), rank=3, svd=solver, device="cuda")
    torch.testing.assert_close(found.projector, exact_projector(rows, 3), rtol=0, atol=1e-8)
    assert found.basis.device.type == found.singular_values.device.type == "cpu"


def test_explained_variance_is_the_share_of_the_squared_spectrum():
    rows = states(60, 20)
    values = torch.linalg.svdvals(rows.double() - rows.double().mean(0))
    for solver in SOLVERS:
        found = mgap.Subspace.from_states(rows, rank=2, svd=solver)
        assert found.explained_variance == pytest.approx(float(values[:2].square().sum() / values.square().sum()))


def test_auto_rank_finds_the_directions_that_stand_out():
    for signal in (1, 3, 6):
        assert mgap.Subspace.from_states(states(80, 200, signal=signal), rank="auto").rank == signal


@pytest.mark.parametrize(("distinct", "named"), [(1, "1 distinct states, but rank auto needs 2"), (2, "flat")])
def test_auto_rank_refuses_states_that_are_all_alike_or_of_two_kinds(distinct, named):
    with pytest.raises(DegenerateSubspace, match=named):
        mgap.Subspace.from_states(states(distinct, 16).repeat(10, 1), rank="auto")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_what_rounding_leaves_of_a_lost_value_is_zero_at_any_scale(scale):
    rows = scale * states(20, 2, signal=1).double() @ states(30, 2, signal=1).double().T
    values = GramSpectrum.of(rows).values
    assert values[1] > 0
    assert not values[2:].any()


@pytest.mark.parametrize(("count", "width", "times"), [(201, 200, 2.86), (101, 200, 2.1725), (206, 41, 1.76048)])
def test_auto_rank_counts_what_is_above_the_threshold_of_its_aspect_ratio(count, width, times):
    values = torch.tensor([times * 1.001, times * 0.999, *[1.0] * 9])  # their median is 1
    assert auto_rank(values, count, width) == 1


def test_auto_rank_refuses_a_flat_spectrum():
    with pytest.raises(DegenerateSubspace, match="flat"):
        auto_rank(torch.ones(40), 41, 200)


def test_a_flat_spectrum_has_no_directions():
    rows = torch.cat([torch.eye(8), -torch.eye(8)])
    with pytest.raises(DegenerateSubspace, match="flat"):
        mgap.Subspace.from_states(rows, rank=3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_states_that_do_not_vary_are_refused(solver):
    with pytest.raises(DegenerateSubspace, match="distinct states"):
        mgap.Subspace.from_states(torch.ones(50, 16), rank=5, svd=solver)


@pytest.mark.parametrize("solver", SOLVERS)
def test_states_that_vary_by_rounding_only_are_refused(solver):
    rows = 10 + 1e-5 * torch.randn(50, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(DegenerateSubspace, match="0 directions"):
        mgap.Subspace.from_states(rows, rank=5, svd=solver)


def test_fewer_distinct_states_than_the_rank_needs_are_refused():
    rows = states(4, 16).repeat(10, 1)
    with pytest.raises(DegenerateSubspace, match="40 prompts gave 4 distinct states, but rank 5 needs 6"):
        mgap.Subspace.from_states(rows, rank=5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_states_that_are_not_finite_are_refused(bad):
    rows = states(20, 8)
    rows[3, 2] = bad
    with pytest.raises(NonFiniteStates, match="float32"):
        mgap.Subspace.from_states(rows, rank=2)


@pytest.mark.parametrize("rank", [0, -1, 9, True, 2.0, "five"])
def test_a_rank_outside_one_to_the_width_is_refused(rank):
    with pytest.raises(SettingError, match="rank"):
        mgap.Subspace.from_states(states(20, 8), rank=rank)


def test_a_full_rank_is_allowed():
    assert mgap.Subspace.from_states(states(40, 8), rank=8).projector == pytest.approx(torch.eye(8), abs=1e-9)


def test_no_states_at_all_are_refused():
    with pytest.raises(DegenerateSubspace, match="no states"):
        principal_directions(iter([]), 5)


def test_an_unknown_solver_names_the_known_ones():
    with pytest.raises(SettingError, match="lanczos"):
        mgap.Subspace.from_states(states(20, 8), rank=2, svd="qr")
