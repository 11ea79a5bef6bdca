"""ASD: against itself written out, up in the main rows and down in the branch's, and off without a trace."""

from dataclasses import replace

import pytest
import torch

import mgap
from mgap.errors import BackboneMismatch, SettingError, UnsupportedDecoding
from mgap.methods.asd import steer
from tests.reference import asd as reference

QUESTIONS = ("Is there a dog in the image?", "What?", "How many people are there?")
NEW = 12


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture(scope="module")
def steering():
    drawn = torch.randn(2, 4, 3, 64, generator=torch.Generator().manual_seed(0))
    return mgap.Steering.from_states(*drawn)


@pytest.mark.parametrize(
    ("layers", "unit", "settings"),
    [
        (None, False, {"lam_pos": 0.2, "lam_neg": 0.4, "alpha": 1.0, "positions": "last"}),
        ((2,), True, {"lam_pos": 1.0, "lam_neg": 1.0, "alpha": 2.0, "positions": "last"}),
        (None, False, {"lam_pos": 0.3, "lam_neg": 0.1, "alpha": 0.5, "positions": "all"}),
    ],
    ids=["defaults", "one block", "all positions"],
)
def test_asd_is_what_its_equations_say(exact, picture, steering, layers, unit, settings):
    vectors, lengths = steering.vectors, []
    if unit:
        vectors = torch.stack([v / (v.square().sum().sqrt() + 1e-12) for v in vectors])
    for question in QUESTIONS:
        main = exact.backbone.encode([picture], [question])
        expected = reference.decode(exact, main, vectors, layers or (1, 2, 3), settings, NEW)
        for mode in ("batched", "sequential"):
            with exact.using(mgap.ASD(steering=steering, layers=layers, unit=unit, branch_mode=mode, **settings)):
                tokens = exact.answer(picture, question, max_new_tokens=NEW).token_ids
            assert tokens[: len(expected)] == expected, (question, mode)
        lengths.append(len(expected))
    assert max(lengths) == NEW, lengths


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_zero_strength_says_what_the_model_says(exact, picture, steering, mode):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.ASD(steering=steering, lam_pos=0.0, lam_neg=0.0, alpha=2.0, branch_mode=mode)):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


@pytest.mark.parametrize(("lam_pos", "lam_neg"), [(2.0, 0.0), (0.0, 2.0)])
def test_either_side_alone_changes_what_the_model_says(exact, picture, steering, lam_pos, lam_neg):
    plain = exact.answer(picture, QUESTIONS[1], max_new_tokens=NEW).token_ids
    with exact.using(mgap.ASD(steering=steering, lam_pos=lam_pos, lam_neg=lam_neg)):
        assert exact.answer(picture, QUESTIONS[1], max_new_tokens=NEW).token_ids != plain


def test_the_picture_is_encoded_once(exact, picture, steering):
    calls = []
    handle = exact.backbone.vision.register_forward_hook(lambda *_: calls.append(1))
    with exact.using(mgap.ASD(steering=steering)):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
    handle.remove()
    assert len(calls) == 1


def test_it_needs_no_picture_and_rows_do_not_meet(exact, picture, steering):
    with exact.using(mgap.ASD(steering=steering, lam_pos=1.0, lam_neg=1.0)):
        alone = [exact.answer(p, q, max_new_tokens=NEW).token_ids for p, q in zip([picture, None], QUESTIONS[:2], strict=True)]
        together = [answer.token_ids for answer in exact.answers([picture, None], QUESTIONS[:2], max_new_tokens=NEW)]
    assert together == alone


def test_detaching_leaves_the_model_as_it_was(exact, picture, steering):
    own = exact.backbone.model
    exact.answer(picture, QUESTIONS[0], max_new_tokens=2)  # transformers adds hooks of its own once

    def look():
        return [(list(module._forward_hooks), list(module._forward_pre_hooks)) for module in own.modules()]

    before = look()
    with exact.using(mgap.ASD(steering=steering)):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=2)
        with pytest.raises(UnsupportedDecoding):
            own(**exact.backbone.encode([picture], ["What?"]))
        assert look() != before
    assert look() == before
    with pytest.raises(SettingError, match="between 1 and 3"), exact.using(mgap.ASD(steering=steering, layers=[4])):
        pass
    narrow = mgap.Steering.from_states(torch.randn(2, 2, 64), torch.randn(2, 2, 64))
    with pytest.raises(BackboneMismatch, match="fit one"), exact.using(mgap.ASD(steering=narrow)):
        pass
    assert look() == before


def test_a_state_in_half_precision_is_steered_in_single():
    state, vector = torch.full((2, 4), 256.0, dtype=torch.bfloat16), torch.full((4,), 0.75)
    assert torch.equal(steer(state, vector, 1.0), torch.full((2, 4), 256.75).bfloat16())
    assert steer(state.double(), vector.double(), -1.0).dtype == torch.float64


def test_saved_steering_is_named_by_its_folder(exact, picture, steering, tmp_path):
    replace(steering, identity=exact.backbone.identity).save(tmp_path)
    told = []
    for given in (steering, str(tmp_path), tmp_path):
        with exact.using(mgap.ASD(steering=given, lam_pos=1.0)):
            told.append(exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids)
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"lam_pos": float("nan")}, "lam_pos"), ({"lam_neg": -0.1}, "lam_neg"), ({"beta": 2}, "beta"),
     ({"positions": "first"}, "positions"), ({"layers": []}, "layers"), ({"unit": 1}, "unit"), ({"steering": 3}, "steering")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(steering, settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.ASD(**{"steering": steering, **settings})


def test_steering_is_asked_for_by_name():
    with pytest.raises(SettingError, match="steering"):
        mgap.ASD.of(alpha=1.0)
