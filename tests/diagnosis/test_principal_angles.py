"""Principal angles: scipy's, what is known by hand, and what no change of basis may change."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mgap.diagnosis.principal_angles import Overlap, SubspaceComparison, orthonormal, principal_angles
from mgap.errors import DegenerateSubspace, SettingError

SIZES = st.tuples(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5), st.integers(10, 30))


def two(seed, one, other, d):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(d, k, generator=generator, dtype=torch.float64) for k in (one, other)]


def rotation(d, seed):
    return orthonormal(torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@given(SIZES)
def test_angles_are_those_of_scipy(sizes):
    linalg = pytest.importorskip("scipy.linalg")
    a, b = two(*sizes)
    expected = torch.from_numpy(linalg.subspace_angles(a.numpy(), b.numpy())[::-1].copy())
    torch.testing.assert_close(principal_angles(a, b), torch.rad2deg(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-9, 1e-6, 1e-3, 0.5, math.pi / 2 - 1e-9, math.pi / 2])
def test_an_angle_is_found_at_any_size(angle):
    turn, d = rotation(12, 3), 12
    flat = torch.eye(d, dtype=torch.float64)
    tilted = torch.stack([math.cos(angle) * flat[0] + math.sin(angle) * flat[5], flat[1]], dim=1)
    found = principal_angles(turn @ flat[:, :2], turn @ tilted)
    assert found[0] < 1e-12  # the second column is common
    assert math.radians(found[1]) == pytest.approx(angle, rel=1e-3, abs=1e-14)


def test_small_angles_side_by_side_are_told_apart():
    flat, wanted = torch.eye(9, dtype=torch.float64), torch.tensor([1e-10, 1e-8, 1e-6], dtype=torch.float64)
    tilted = flat[:, :3] * wanted.cos() + flat[:, 3:6] * wanted.sin()  # cosines are all 1 in double precision
    mixed = tilted @ rotation(3, 1)
    torch.testing.assert_close(torch.deg2rad(principal_angles(flat[:, :3], mixed)), wanted, rtol=1e-4, atol=0)


@given(SIZES, st.integers(0, 1000))
def test_angles_do_not_see_rotations_nor_bases_nor_the_order(sizes, seed):
    a, b = two(*sizes)
    angles = principal_angles(a, b)
    turn, mix = rotation(sizes[3], seed), rotation(a.shape[1], seed + 1)
    for one, other in ((turn @ a, turn @ b), (a @ mix, b), (a.flip(1), -3 * b), (b, a)):
        torch.testing.assert_close(principal_angles(one, other), angles, rtol=0, atol=1e-8)
    assert (angles[1:] >= angles[:-1]).all()
    assert ((angles >= 0) & (angles <= 90)).all()


@given(SIZES)
def test_a_subspace_inside_another_is_at_0_and_one_at_right_angles_at_90(sizes):
    a, b = two(*sizes)
    both = torch.cat([a, b], dim=1)
    assert Overlap.of(a, both).largest < 1e-5
    assert Overlap.of(a, both).shared == pytest.approx(1)
    apart = b - orthonormal(a) @ (orthonormal(a).T @ b)
    assert principal_angles(a, apart) == pytest.approx(torch.full((min(sizes[1:3]),), 90.0).double())
    assert Overlap.of(a, apart).shared == pytest.approx(0, abs=1e-12)


def test_random_subspaces_share_the_larger_rank_by_the_width():
    found = [Overlap.of(*two(seed, 3, 5, 20)) for seed in range(400)]
    assert found[0].chance == 5 / 20
    assert sum(pair.shared for pair in found) / len(found) == pytest.approx(5 / 20, abs=0.02)


def test_what_has_no_angle_is_refused():
    a, b = two(0, 2, 2, 6)
    with pytest.raises(SettingError, match="one length"):
        principal_angles(a, b[:5])
    with pytest.raises(DegenerateSubspace, match="fewer directions"):
        principal_angles(a, torch.cat([b[:, :1], 2 * b[:, :1]], dim=1))
    with pytest.raises(DegenerateSubspace, match="fewer directions"):
        principal_angles(torch.zeros(6, 1), b)
    with pytest.raises(DegenerateSubspace, match="fewer directions"):
        orthonormal(torch.eye(2, 3, dtype=torch.float64) + 0.5)  # three columns of two numbers
    with pytest.raises(DegenerateSubspace, match="has none"):
        principal_angles(a, b[:, :0])


def test_a_comparison_is_symmetric_and_needs_one_rank():
    a, b = two(1, 2, 2, 6)
    a, b = orthonormal(a), orthonormal(b)
    found = SubspaceComparison.of("prompts", {"a": (a, 10), "b": (b, 20)}, line=3 * a[:, 0])
    assert found.readout == (pytest.approx(1), pytest.approx(float((b.T @ a[:, 0]).square().sum())))
    assert (found.labels, found.counts, found.rank, found.chance) == (("a", "b"), (10, 20), 2, 2 / 6)
    assert found.largest[0][1] == pytest.approx(found.largest[1][0])
    assert found.largest[0][0] == pytest.approx(0, abs=1e-10)
    assert found.shared[0][1] == pytest.approx(Overlap.of(a, b).shared)
    with pytest.raises(SettingError, match="one width and rank"):
        SubspaceComparison.of("prompts", {"a": (a, 10), "b": (b[:, :1], 20)})
    with pytest.raises(SettingError, match="none"):
        SubspaceComparison.of("prompts", {})
