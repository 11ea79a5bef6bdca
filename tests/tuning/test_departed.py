"""Only states in doubt are compared with the bank again, and the verdict is the same."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from mgap.priors.bank import Bank
from mgap.priors.manifold import Manifold, neighbour_distances
from mgap.tuning.departed import are_outside


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 1.0, 5.0]), st.integers(1, 5))
def test_a_distance_changes_by_no_more_than_the_state_moves(seed, size, k):
    draw = torch.Generator().manual_seed(seed)
    bank, plain, way = (torch.randn(12, 6, generator=draw) for _ in range(3))
    moved = plain + size * way
    change = (neighbour_distances(moved, bank, k) - neighbour_distances(plain, bank, k)).abs()
    assert (change <= (moved - plain).norm(dim=-1) + 1e-5).all()


@given(st.integers(0, 2**32 - 1), st.floats(0, 4), st.sampled_from(["euclidean", "cosine"]))
def test_the_verdict_is_that_of_comparing_all(seed, size, metric):
    draw = torch.Generator().manual_seed(seed)
    plain = torch.randn(30, 6, generator=draw)
    moved = plain + size * torch.randn(30, 6, generator=draw)
    manifold = Manifold.of(Bank.of(torch.randn(40, 6, generator=draw)), k=3, delta=0.2, metric=metric)
    found = are_outside(manifold, plain, manifold.distances(plain), moved)
    assert found.tolist() == (manifold.distances(moved) > manifold.tau).tolist()


def test_states_that_cannot_have_left_are_not_compared_again(monkeypatch):
    bank = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    manifold = Manifold.of(Bank.of(bank), k=3)
    plain = torch.stack([torch.zeros(4), torch.full((4,), 100.0), torch.full((4,), 0.1)])
    distances, compared = manifold.distances(plain), []
    monkeypatch.setattr(Manifold, "distances", lambda self, states: compared.append(len(states)) or torch.zeros(len(states)))
    assert are_outside(manifold, plain, distances, plain + 0.01).tolist() == [False, True, False]
    assert compared == []
    are_outside(manifold, plain, distances, plain + torch.tensor([[0.0], [200.0], [0.0]]))
    assert compared == [1]
