"""A grid of settings from states alone: what decoding would say under each of them, and how far each one moves."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mgap
from mgap.backbones.head import Head
from mgap.backbones.shared_vision import shared_pictures
from mgap.decoding.effective_states import first_states
from mgap.errors import SettingError
from mgap.methods.head_inputs import HeadInputs
from mgap.methods.mgap import Settings
from mgap.tuning.sweep import Grid, Point, cut_states, sweep

PROMPTS = [
    "Is there a dog in the image?",
    "Describe the image.",
    "What is on the left?",
    "Is it raining?",
    "How many are there?",
]
POINTS = [
    Point(0.0, 0.5, 5),
    Point(0.25, 0.25, 1),
    Point(0.75, 0.5, 3),
    Point(2.0, 1.0, 5),
    Point(40.0, 1.0, 5),  # random weights change their minds late
    Point(6.0, 0.5, 5, gate=False),
    Point(6.0, 0.5, 3, protect=False),
]


def plain_states(model, picture, batch_size):
    read_states = []
    with first_states(model, None) as read:
        for start in range(0, len(PROMPTS), batch_size):
            prompts = PROMPTS[start : start + batch_size]
            read_states.append(read(model.backbone.encode([picture] * len(prompts), prompts)).h)
    return torch.cat(read_states)


@pytest.fixture(scope="module")
def states(model, picture):
    return plain_states(model, picture, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:alpha")
def test_tokens_are_those_that_decoding_says_in_the_same_dtype(family, checkpoints, picture, dtype):
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    prior = mgap.Subspace.fit(model, mgap.default_prompts())
    found = sweep(model.backbone.probe_head(), prior.basis, plain_states(model, picture, 3), POINTS, batch_size=3)
    said = []
    for point in POINTS:
        with model.using(mgap.MGAP(prior, **point.to_json())), shared_pictures(model.backbone):
            answers = model.answers([picture] * len(PROMPTS), PROMPTS, batch_size=3, max_new_tokens=1)
            said.append([answer.token_ids[0] for answer in answers])
    assert found.tokens.tolist() == said
    assert said[4] != said[0]  # or nothing was put to the test


def test_the_step_is_the_mean_distance_of_the_states_that_are_decoded_from(model, prior, states):
    head = model.backbone.probe_head()
    found = sweep(head, prior.basis, states, POINTS, batch_size=2)
    for place, point in enumerate(POINTS):
        moved = cut_states(head, prior.basis, states, point, batch_size=2)
        assert float(found.steps[place]) == pytest.approx(float((moved - states).norm(dim=-1).mean()), rel=1e-4, abs=1e-6)
        method = mgap.MGAP(prior, **{**point.to_json(), "alpha": 0.0})
        torch.testing.assert_close(moved, method.effective_states(head, HeadInputs(states), point.alpha))
    assert found.steps[0] == 0


def test_a_head_that_is_not_linear_is_asked_again_and_not_approximated():
    torch.manual_seed(0)
    module = torch.nn.Linear(16, 40, bias=True)
    states = torch.randn(12, 16)
    basis = torch.linalg.qr(torch.randn(16, 4)).Q.double()
    linear = Head.measure(module, states)
    points = [Point(0.0, 0.5, 4), Point(1.0, 0.5, 2), Point(3.0, 1.0, 4)]
    fast = sweep(linear, basis, states, points)

    class Bent(torch.nn.Linear):
        def forward(self, h):
            return super().forward(h).pow(3)

    bent = Bent(16, 40)
    bent.load_state_dict(module.state_dict())
    head = Head.measure(bent, states)
    assert linear.linear
    assert not head.linear
    found = sweep(head, basis, states, points)
    for place, point in enumerate(points):
        moved = cut_states(head, basis, states, point)
        assert found.tokens[place].tolist() == bent(moved).argmax(-1).tolist()
        assert fast.tokens[place].tolist() == module(cut_states(linear, basis, states, point)).argmax(-1).tolist()


@given(st.lists(st.floats(0, 9, allow_nan=False), min_size=1, max_size=5), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_a_grid_begins_with_plain_decoding_and_goes_along_alpha_path_by_path(alphas, ranks):
    grid = Grid.of({"alpha": alphas, "rank": ranks, "gate": [True, False]})
    points = grid.points()
    assert points[0].alpha == 0
    assert len(points) == len(set(points)) == len(grid.alpha) * len(grid.lam) * len(grid.rank) * 2
    for before, after in pairwise(points):
        assert (before.alpha < after.alpha) == (before.path == after.path)
    assert Grid.of(grid.to_json()) == grid


def test_what_is_tried_unless_said_otherwise():
    assert Grid().alpha == (*(n / 4 for n in range(32)), 8.0)
    assert (Grid().lam, Grid().rank) == ((0.25, 0.5, 0.75, 1.0), (1, 3, 5, 10))
    assert Point(0.75, 0.5, 5).settings == Settings(0.75, 0.5)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"beta": [1]}, "'beta'"),
        ({"alpha": [-1.0]}, "alpha=-1.0"),
        ({"alpha": [float("inf")]}, "alpha=inf"),
        ({"rank": [0]}, "rank=0"),
        ({"rank": [2.5]}, "rank=2.5"),
        ({"lam": []}, "lam"),
        ({"gate": [1]}, "gate=1"),
    ],
)
def test_a_grid_refuses_what_mgap_would_refuse(values, named):
    with pytest.raises(SettingError, match=named):
        Grid.of(values)


def test_a_rank_beyond_the_priors_is_refused(model, prior, states):
    with pytest.raises(SettingError, match="rank=6 is larger than 5"):
        sweep(model.backbone.probe_head(), prior.basis, states, [Point(1.0, 0.5, 6)])
