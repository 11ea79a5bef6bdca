"""DoLa: against itself written out, its choice of layers, its edges, and what it refuses."""

import math

import pytest
import torch

import mgap
from mgap.errors import SettingError
from mgap.methods.dola import contrast_layers, jensen_shannon, mixture_divergence
from tests.reference import dola as reference
from tests.reference.loop import assert_agrees

DIVERGENCES = {"reference-code": reference.divergence_of_the_code, "paper": reference.divergence_of_the_paper}


@pytest.mark.parametrize("preset", DIVERGENCES)
@pytest.mark.parametrize("lens_norm", [False, True])
def test_its_tokens_agree_with_the_method_written_out(model, picture, preset, lens_norm):
    def answer(inputs, new):
        rule = DIVERGENCES[preset]
        return reference.answer(model, inputs, [0, 1, 2], new, divergence=rule, lens_norm=lens_norm)[0]

    assert_agrees(model, picture, mgap.DoLa(layers=[0, 1, 2], preset=preset, lens_norm=lens_norm), answer)


def test_the_trace_names_the_layer_that_was_chosen(model, picture):
    question = "Is there a dog in the image?"
    with model.using(mgap.DoLa(layers=[0, 1, 2])):
        answer = model.answer(picture, question, max_new_tokens=8, trace=True)
    tokens, layers = reference.answer(model, model.backbone.encode([picture], [question]), [0, 1, 2], 8)
    steps = answer.trace[: len(tokens)]
    assert [int(step.values["layer"]) for step in steps] == layers
    for step in steps:
        assert set(step.values) == {"layer", "js", "kept"}
        assert step.after[0].token_id == step.token_id
        assert step.values["kept"] >= 1
        assert step.values["js"] > 0


def test_the_plain_favourite_alone_decodes_as_the_plain_model(model, picture):
    plain = model.answer(picture, "What is this?", max_new_tokens=20)
    with model.using(mgap.DoLa(layers=[1, 2], relative_top=1.0)):
        assert model.answer(picture, "What is this?", max_new_tokens=20).token_ids == plain.token_ids


def test_the_static_variant_subtracts_the_one_layer(model, picture):
    assert_agrees(model, picture, mgap.DoLa(layers=2), lambda inputs, new: reference.answer(model, inputs, [2], new)[0])


@pytest.mark.parametrize("divergence", [mixture_divergence, jensen_shannon])
def test_a_token_that_neither_layer_can_say_adds_nothing(divergence):
    q, r = torch.tensor([0.7, 0.3]).log(), torch.tensor([0.2, 0.8]).log()
    hopeless = torch.tensor([-math.inf, -500.0])
    times = 2 if divergence is mixture_divergence else 1  # that one is a mean over twice as many tokens
    found = divergence(torch.cat([q, hopeless]), torch.cat([r, hopeless]))
    torch.testing.assert_close(times * found, divergence(q, r))


class Tied:
    tied = True


class Untied:
    tied = False


@pytest.mark.parametrize(
    ("layers", "blocks", "head", "expected"),
    [("low", 32, Untied, range(0, 16, 2)), ("high", 32, Untied, range(16, 32, 2)), ("low", 32, Tied, range(2, 16, 2)),
     ("high", 36, Tied, range(18, 36, 2)), ("low", 6, Untied, [0, 2]), ("high", 6, Untied, [4]), ("low", 5, Tied, [2]),
     ([0, 3], 5, Tied, [0, 3])],
)  # fmt: skip
def test_the_candidate_layers_of_a_depth(layers, blocks, head, expected):
    assert mgap.DoLa(layers=layers).early_layers(blocks, head) == tuple(expected)


def test_the_divergences_are_those_written_out():
    q, r = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    written = (
        reference.divergence_of_the_code(q.tolist(), r.tolist()),
        reference.divergence_of_the_paper(q.tolist(), r.tolist()),
    )
    assert (float(mixture_divergence(q, r)), float(jensen_shannon(q, r))) == pytest.approx(written, abs=1e-12)


@pytest.mark.parametrize("divergence", ["mixture", "jensen-shannon"])
def test_very_peaked_and_overflown_layers_leave_no_nan(divergence):
    final = torch.tensor([[300.0, 0.0, -300.0, -1000.0]])
    early = torch.stack([-final, final, torch.full_like(final, torch.inf)])
    step = contrast_layers(final, early, 0.1, divergence)
    assert step.chosen.tolist() == [0]
    assert step.scores.argmax(-1).tolist() == [0]
    assert not step.scores.isnan().any()


def test_a_token_is_kept_at_the_cutoff_and_dropped_below():
    final = torch.tensor([0.0, math.log(0.1) + 1e-4, math.log(0.1) - 1e-4])
    step = contrast_layers(final, torch.zeros(1, 3), 0.1, "mixture")
    assert step.scores.isfinite().tolist() == [True, True, False]
    assert contrast_layers(final, torch.zeros(1, 3), 0.0, "mixture").scores.isfinite().all()


def test_of_equal_layers_the_lowest_is_chosen():
    assert contrast_layers(torch.randn(3, 9), torch.zeros(4, 3, 9), 0.1, "mixture").chosen.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"layers": "middle"}, "low, high"), ({"layers": []}, "layers"), ({"layers": [True]}, "layers"),
     ({"layers": -1}, "layers"), ({"relative_top": 1.5}, "relative_top"), ({"relative_top": math.nan}, "relative_top"),
     ({"preset": "papr"}, "reference-code"), ({"divergence": "kl"}, "mixture"), ({"lens_norm": 1}, "lens_norm")],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused(settings, named):
    with pytest.raises(SettingError, match=named):
        mgap.DoLa(**settings)


def test_what_is_given_wins_over_the_preset():
    assert mgap.DoLa(preset="paper").divergence == "jensen-shannon"
    assert mgap.DoLa(preset="paper", divergence="mixture").divergence == "mixture"
