"""DeCo: against itself written out, its candidates, its zero, and what it refuses."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import mgap
from mgap.errors import SettingError
from mgap.methods.deco import correct
from tests.reference import deco as reference
from tests.reference.loop import assert_agrees


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"alpha": 5.0}, marks=pytest.mark.both_families),
        {"alpha": 40.0, "top_p": 0.5, "top_k": 4},
        {"alpha": 3.0, "top_p": 1.0, "top_k": 50},
    ],
)
def test_its_tokens_agree_with_the_method_written_out(model, picture, settings):
    def answer(inputs, new):
        return reference.answer(model, inputs, [0, 1, 2], new, **settings)[0]

    assert_agrees(model, picture, mgap.DeCo(layers=[0, 1, 2], **settings), answer)


def test_the_trace_has_the_anchor_layer_its_weight_and_the_candidates(model, picture):
    question = "Is there a dog in the image?"
    with model.using(mgap.DeCo(layers=[1, 2], alpha=5.0)):
        answer = model.answer(picture, question, max_new_tokens=8, trace=True)
    tokens, seen = reference.answer(model, model.backbone.encode([picture], [question]), [1, 2], 8, alpha=5.0)
    for step, (layer, weight, candidates) in zip(answer.trace[: len(tokens)], seen, strict=True):
        assert set(step.values) == {"layer", "max_prob", "candidates"}
        assert (step.values["layer"], step.values["candidates"]) == (layer, candidates)
        assert step.values["max_prob"] == pytest.approx(weight, rel=1e-3)
        assert step.after[0].token_id == step.token_id


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_alpha_zero_decodes_greedily_as_the_plain_model(family, checkpoints, picture, dtype):
    model = mgap.load(str(checkpoints[family]), dtype=dtype)
    plain = model.answer(picture, "What is this?", max_new_tokens=20)
    with model.using(mgap.DeCo(alpha=0.0)):
        assert model.answer(picture, "What is this?", max_new_tokens=20).token_ids == plain.token_ids


@pytest.mark.parametrize(("blocks", "expected"), [(32, range(20, 29)), (36, range(22, 32)), (3, [1]), (2, [1]), (1, [0])])
def test_the_layers_are_the_same_fractions_of_every_depth(blocks, expected):
    assert mgap.DeCo().early_layers(blocks, None) == tuple(expected)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [(0.5, 20, 1), (0.51, 20, 2), (0.75, 20, 2), (0.76, 20, 3), (1.0, 2, 2), (0.0, 20, 1), (1.0, 9, 3)],
)
def test_the_candidates_are_the_shortest_prefix_that_holds_top_p(top_p, top_k, kept):
    final = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64).log()
    step = correct(final, torch.zeros(1, 1, 3, dtype=torch.float64), 0.6, top_p, top_k)
    assert int(step.values["candidates"]) == kept == int(step.scores.isfinite().sum())
    assert bool(step.scores[0, 1].isfinite())


def test_of_equal_layers_the_lowest_is_the_anchor():
    assert correct(torch.randn(3, 9), torch.zeros(4, 3, 9), 0.6, 0.9, 20).chosen.tolist() == [0, 0, 0]


def test_layers_that_are_all_sure_in_float32_are_told_apart():
    final = torch.tensor([9.0, 0.0, 0.0])
    early = torch.tensor([[20.0, 0.0, 0.0], [24.0, 0.0, 0.0], [22.0, 0.0, 0.0]])  # p rounds to 1 in each
    assert early.softmax(-1)[:, 0].tolist() == [1.0, 1.0, 1.0]
    step = correct(final, early, 0.6, 0.9, 20)
    assert int(step.chosen) == int(correct(final.double(), early.double(), 0.6, 0.9, 20).chosen) == 1
    assert float(step.values["max_prob"]) == 1.0


@given(seed=st.integers(0, 2**32 - 1), gap=st.floats(5, 40), layers=st.integers(2, 6), rows=st.integers(1, 3))
def test_sharp_layers_are_chosen_as_in_float64(seed, gap, layers, rows):
    generator = torch.Generator().manual_seed(seed)
    early = torch.randn(layers, rows, 50, generator=generator)
    final = torch.randn(rows, 50, generator=generator)
    final[:, 7] += 9
    early[..., 7] += gap + torch.rand(layers, rows, generator=generator)
    wide = early.double()
    rest = wide.index_fill(-1, torch.tensor([7]), -torch.inf).logsumexp(-1) - wide.logsumexp(-1)  # log(1 - p), [layers, rows]
    two = rest.sort(0).values[:2]
    assume(bool((two[1] - two[0] > 1e-5).all()))
    assert correct(final, early, 0.6, 0.9, 1).chosen.equal(rest.argmin(0))


@pytest.mark.parametrize("broken", [torch.nan, -torch.inf])
def test_a_layer_without_finite_logits_gives_no_finite_weight(broken):
    early = torch.zeros(2, 3)
    early[1] = broken
    step = correct(torch.tensor([2.0, 1.0, 0.0]), early, 0.6, 0.9, 20)
    assert int(step.chosen) == 1
    assert step.values["max_prob"].isnan()


def test_a_layer_that_is_sure_of_another_token_is_no_anchor():
    final = torch.tensor([5.0, 4.9, -9.0])
    early = torch.tensor([[0.0, 0.0, 20.0], [0.0, 1.0, 0.0]])  # the first is sure of the third token, which is no candidate
    step = correct(final, early, 0.6, 0.9, 20)
    assert int(step.chosen) == 1
    assert int(step.scores.argmax()) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"alpha": -1}, "alpha"), ({"alpha": math.inf}, "alpha"), ({"top_p": 2}, "top_p"), ({"top_k": 0}, "top_k"),
     ({"top_k": 2.5}, "top_k"), ({"layers": []}, "layers"), ({"layers": "low"}, "layers"),
     ({"layers": [2, True]}, "layers"), ({"layers": [2, -1]}, "layers")],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused(settings, named):
    with pytest.raises(SettingError, match=named):
        mgap.DeCo(**settings)
