"""The bank as the eye sees it."""

import pytest
import torch

from mgap.diagnosis.landscape import Landscape, plane_of, project
from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold, member_distances


@pytest.fixture
def bank():
    drawn = torch.randn(300, 12, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 12)
    return Bank.of(drawn)


def test_places_are_those_of_scikit_learns_principal_components(bank):
    from sklearn.decomposition import PCA

    land = Landscape.of(bank, Manifold.of(bank))
    theirs = PCA(2).fit(bank.states.double().numpy())
    asked = torch.randn(20, 12, generator=torch.Generator().manual_seed(1))
    x, y = torch.as_tensor(theirs.transform(asked.double().numpy())).T
    places = land.place(asked)
    for mine, other in ((torch.tensor([p.x for p in places]), x), (torch.tensor([p.y for p in places]), y)):
        sign = torch.sign(mine[0].double() * other[0])
        torch.testing.assert_close(mine.double() * sign, other, rtol=1e-4, atol=1e-4)
    assert land.shares == pytest.approx(theirs.explained_variance_ratio_.tolist(), rel=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_entry_of_an_axis_points_to_the_right_or_up(seed):
    axes = plane_of([torch.randn(40, 12, generator=torch.Generator().manual_seed(seed))])
    found = project(axes, axes.mean + axes.basis.T)  # a step along each axis
    largest = axes.basis[axes.basis.abs().argmax(0), [0, 1]]
    torch.testing.assert_close(found, torch.diag(largest.sign()), rtol=1e-6, atol=1e-6)


def test_a_state_departs_where_it_is_farther_than_tau(bank):
    manifold = Manifold.of(bank)
    near, far = Landscape.of(bank, manifold).place(torch.stack([torch.zeros(12), torch.full((12,), 50.0)]))
    assert not near.is_departed
    assert far.is_departed
    assert far.distance > manifold.tau > near.distance


def test_the_members_have_their_own_distances_and_at_most_so_many_are_shown(bank):
    land = Landscape.of(bank, Manifold.of(bank), shown=100)
    assert len(land.points) == 100
    assert land.states == len(land.distances) == 300
    torch.testing.assert_close(torch.tensor(land.distances), member_distances(bank.states), rtol=1e-5, atol=1e-5)
    share = sum(d > land.manifold.tau for d in land.distances) / 300
    assert share == pytest.approx(0.05, abs=0.005)
