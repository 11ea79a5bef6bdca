"""Nullu: against a model whose weights are edited by hand, along its directions nothing, and off without a trace."""

from dataclasses import replace

import pytest
import torch

import mgap
from mgap.backbones.block_mlp import block_mlps
from mgap.errors import BackboneMismatch, SettingError
from mgap.methods.base import Tap
from mgap.methods.nullu import ProjectedOutput, project_out
from tests.reference import loop
from tests.reference import nullu as reference

QUESTIONS = ("Is there a dog in the image?", "What?")
NEW = 8


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture(scope="module")
def space():
    drawn = torch.randn(2, 60, 3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return mgap.NullSpace.from_states(*drawn, rank=24, start=0)


def logits_of(model, inputs):
    with torch.no_grad():
        return model.backbone.model(**inputs).logits


@pytest.mark.both_families
@pytest.mark.parametrize(
    ("settings", "blocks"), [({}, (0, 1, 2)), ({"strength": 0.5, "start": 1}, (1, 2)), ({"start": 1, "end": 2}, (1,))], ids=str
)
def test_nullu_is_what_its_equations_say(exact, picture, space, settings, blocks):
    projectors = {block: space.projectors[block].numpy() for block in blocks}
    strength = settings.get("strength", 1.0)
    method = mgap.Nullu(space=space, **settings)
    loop.assert_agrees(
        exact, picture, method, lambda inputs, new: reference.decode(exact, inputs, projectors, new, strength), NEW
    )


@pytest.mark.parametrize("settings", [{"strength": 0.0}, {"start": 2, "end": 2}], ids=str)
def test_without_strength_or_blocks_the_logits_are_the_models_own_to_the_bit(model, exact, picture, space, settings):
    """Also in 16 bits."""
    for one in (exact, mgap.load(model.backbone.name, dtype="bfloat16")):
        inputs = one.backbone.encode([picture], ["What?"])
        plain = logits_of(one, inputs)
        with one.using(mgap.Nullu(space=space, **settings)):
            assert torch.equal(logits_of(one, inputs), plain)


def test_an_edited_mlp_writes_nothing_along_the_directions_and_all_else_as_before(exact, space):
    drawn = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1))
    mlps = block_mlps(exact.backbone)
    for strength in (1.0, 0.25):
        for block in (1, 2):
            basis = space.bases[block].float()
            before = mlps[block](drawn).detach()
            with exact.using(mgap.Nullu(space=space, strength=strength, start=1)):
                after = mlps[block](drawn).detach()
            torch.testing.assert_close(after @ basis.T, (1 - strength) * before @ basis.T, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(project_out(after, basis), project_out(before, basis), atol=1e-5, rtol=1e-5)
    with exact.using(mgap.Nullu(space=space, start=1)):
        after = mlps[0](drawn)
    torch.testing.assert_close(after, mlps[0](drawn), atol=0, rtol=0)


def test_rows_do_not_meet_and_no_picture_is_needed(exact, picture, space):
    with exact.using(mgap.Nullu(space=space)):
        alone = [exact.answer(p, q, max_new_tokens=NEW).token_ids for p, q in zip([picture, None], QUESTIONS, strict=True)]
        together = [answer.token_ids for answer in exact.answers([picture, None], QUESTIONS, max_new_tokens=NEW)]
    assert together == alone


def test_detaching_leaves_the_model_as_it_was(exact, picture, space):
    exact.answer(picture, "What?", max_new_tokens=2)  # transformers adds hooks of its own once

    def look():
        return [(list(part._forward_hooks), list(part._forward_pre_hooks)) for part in exact.backbone.model.modules()]

    before = look()
    with exact.using(mgap.Nullu(space=space)):
        assert look() != before
    assert look() == before
    narrow = mgap.NullSpace.from_states(torch.randn(9, 3, 32), torch.randn(9, 3, 32), 2)
    with pytest.raises(BackboneMismatch, match="fit one"), exact.using(mgap.Nullu(space=narrow)):
        pass
    assert look() == before


def test_what_is_written_in_half_precision_is_projected_in_single_and_not_in_place():
    basis = torch.nn.functional.normalize(torch.ones(1, 8), dim=-1)
    written = (torch.full((1, 1, 8), 256.0) + torch.eye(8)[0]).bfloat16()  # 256 and 258: the remainder is far below rounding
    kept = written.clone()
    hook = ProjectedOutput(basis, 1.0, Tap())
    expected = project_out(written.float(), basis).bfloat16()
    assert torch.equal(hook(None, (), written), expected)
    assert torch.equal(written, kept)
    assert hook(None, (), (written, "router"))[1] == "router"
    assert torch.equal(hook(None, (), (written, "router"))[0], expected)


def test_the_trace_has_the_share_that_lies_along_the_directions(exact, picture, space):
    wrote, mlps = {}, block_mlps(exact.backbone)
    handles = [mlp.register_forward_hook(lambda mlp, _, out: wrote.setdefault(mlp, []).append(out)) for mlp in mlps]
    with exact.using(mgap.Nullu(space=space, strength=0.5)):
        traced = exact.answer(picture, "What?", max_new_tokens=3, trace=True)
        untraced = exact.answer(picture, "What?", max_new_tokens=3)
    for handle in handles:
        handle.remove()
    assert traced.token_ids == untraced.token_ids
    for n, step in enumerate(traced.trace):
        shares = []
        for block, mlp in enumerate(mlps):  # our hooks came first, and saw what the MLP itself wrote
            plain = wrote[mlp][n][0, -1].double()
            shares.append(float((plain @ space.bases[block].T).norm() / plain.norm()))
        assert step.values["share"] == pytest.approx(sum(shares) / 3, abs=1e-4)
        assert step.before == step.after


def test_a_saved_space_is_named_by_its_folder(exact, picture, space, tmp_path):
    replace(space, identity=exact.backbone.identity).save(tmp_path)
    told = []
    for given in (space, str(tmp_path), tmp_path):
        with exact.using(mgap.Nullu(space=given)):
            told.append(exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids)
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"strength": -0.1}, "strength"), ({"strength": 1.5}, "strength"), ({"strength": True}, "strength"),
     ({"start": -1}, "start"), ({"start": 2, "end": 1}, "end=1"), ({"end": 4}, "end=4"),
     ({"start": 1.0}, "start"), ({"space": 3}, "space")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(space, settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.Nullu(**{"space": space, **settings})


def test_blocks_that_the_space_does_not_have_are_refused(space):
    upper = replace(space, bases=space.bases[1:], singular_values=space.singular_values[1:], start=1)
    assert mgap.Nullu(space=upper).blocks == range(1, 3)
    with pytest.raises(SettingError, match="blocks 1 to 2"):
        mgap.Nullu(space=upper, start=0)


def test_the_space_is_asked_for_by_name():
    with pytest.raises(SettingError, match="space"):
        mgap.Nullu.of(strength=1.0)
