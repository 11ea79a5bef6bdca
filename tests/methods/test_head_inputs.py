"""Predictions weighed against each other, as one state: the head must make them of it, or it is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mgap.backbones.head import Head
from mgap.errors import ModelError, UnsupportedHead
from mgap.methods.head_inputs import HeadInputs, mix_states

D, VOCAB, ROWS = 6, 15, 4
WEIGHTS = st.lists(st.floats(-4, 4), min_size=1, max_size=4)


def head_of(module, **more):
    return Head.measure(module.double(), torch.zeros(1, 1, D, dtype=torch.float64), **more)


def states(count):
    return torch.randn(count, ROWS, D, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


@given(WEIGHTS)
def test_a_head_without_bias_makes_any_weighing_of_it(weights):
    head, given_states = head_of(nn.Linear(D, VOCAB, bias=False), scale=0.5), states(len(weights))
    made = head.post(head.product(mix_states("it", head, weights, given_states)))
    expected = sum(w * head.post(head.product(state)) for w, state in zip(weights, given_states, strict=True))
    torch.testing.assert_close(made, expected)


@given(WEIGHTS)
def test_a_head_with_a_bias_makes_it_of_weights_that_sum_to_1(weights):
    head, weights = head_of(nn.Linear(D, VOCAB)), [*weights, 1 - sum(weights)]
    made = head.product(mix_states("it", head, weights, states(len(weights))))
    expected = sum(w * head.product(state) for w, state in zip(weights, states(len(weights)), strict=True))
    torch.testing.assert_close(made, expected)


def test_weights_that_do_not_sum_to_1_are_refused_with_a_bias_in_whatever_row():
    head, rows = head_of(nn.Linear(D, VOCAB)), torch.tensor([0.0, 0.0, 0.0, 0.5]).unsqueeze(-1)
    with pytest.raises(UnsupportedHead, match="dola weighs the head's bias"):
        mix_states("dola", head, (1.0, rows), states(2))
    assert mix_states("dola", head, (1.0, 0 * rows), states(2)).equal(states(2)[0])


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (lambda: head_of(nn.Linear(D, VOCAB, bias=False), cap=30.0), "capped at 30"),
        (lambda: head_of(nn.Sequential(nn.Linear(D, VOCAB), nn.ReLU())), "not linear"),
    ],
)
def test_a_head_that_is_not_linear_is_refused(head, why):
    with pytest.raises(UnsupportedHead, match=f"{why}.*leave vcd out"):
        mix_states("vcd", head(), (2.0, -1.0), states(2))


def test_as_many_states_as_weights_or_an_error():
    with pytest.raises(ModelError, match="vcd weighs 2 predictions, and the head read 3"):
        mix_states("vcd", head_of(nn.Linear(D, VOCAB)), (2.0, -1.0), states(3))


def test_every_row_has_the_layer_that_was_chosen_for_it():
    early = dict(zip((4, 8, 20), states(3), strict=True))
    anchor = HeadInputs(states(1)[0], early=early, values={"layer": torch.tensor([8.0, 20.0, 4.0, 8.0])}).anchor
    assert anchor.equal(torch.stack([early[layer][row] for row, layer in enumerate((8, 20, 4, 8))]))
