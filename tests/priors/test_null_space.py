"""Null spaces: what pairs of captions say, saved and read back, and refused for another model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import mgap
from mgap.errors import BackboneMismatch, CorruptFile, DegenerateSubspace, NonFiniteStates, PromptError, SettingError
from mgap.priors.null_space import CaptionPair, upper_blocks
from mgap.verify.compare import SHIPPED
from tests.reference import nullu as reference

THINGS = ("dog", "car", "person", "cat", "image")


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def pairs(picture):
    turned = picture.rotate(90, expand=True)
    texts = [(f"there is a {thing}", f"there is a {thing} and a picture in the image") for thing in THINGS]
    return [CaptionPair(turned if n % 2 else picture, "What?", *both) for n, both in enumerate(texts)]


@pytest.mark.both_families
@pytest.mark.parametrize(("preset", "whole"), [("paper", False), ("reference-code", True)])
def test_directions_are_those_of_the_captions_states(model, pairs, preset, whole):
    """With the last block's state before the final norm, or after it as in the authors' code."""
    found = mgap.NullSpace.fit(model, iter(pairs), 2, preset=preset)
    how = {"whole": whole, "normed": whole}
    true, false = (
        np.stack([reference.states(model, pair.image, pair.prompt, getattr(pair, side), **how) for pair in pairs])
        for side in ("true", "false")
    )
    assert (found.blocks, found.depth, found.count, found.dropped) == (range(1, 3), 3, 5, 0)
    for block, projector in zip(found.blocks, found.projectors, strict=True):
        np.testing.assert_allclose(projector, reference.projector(true[:, block], false[:, block], 2), atol=1e-4)
    assert not any("catch" in str(block._forward_hooks) for block in model.backbone.layers)


def test_the_reference_gives_the_published_vectors():
    with np.load(SHIPPED / "nullu.npz") as file:
        vectors = dict(file)
    for n, block in enumerate(vectors["layers"]):
        true, false = vectors["truthful"][:, block], vectors["hallucinated"][:, block]
        for centring, name in ((0.0, "projector"), (float(vectors["centring"]), "projector_centred")):
            found = reference.projector(true, false, int(vectors["rank"]), centring)
            np.testing.assert_allclose(found, vectors[name][n], atol=1e-9)


@pytest.mark.parametrize("count", [9, 40])  # fewer pairs than dimensions, and more
def test_a_projector_is_one_of_its_rank_whatever_the_signs_and_the_order_of_pairs(count):
    true, false = draws(count, 4, 16), draws(count, 4, 16, seed=1)
    found = mgap.NullSpace.from_states(true, false, 3)
    turned = mgap.NullSpace.from_states(false.flip(0), true.flip(0), 3)
    P = found.projectors
    torch.testing.assert_close(P @ P, P)
    torch.testing.assert_close(P.diagonal(dim1=1, dim2=2).sum(-1), torch.full((2,), 3.0).double())
    torch.testing.assert_close(P, turned.projectors)
    for n, block in enumerate(found.blocks):
        np.testing.assert_allclose(P[n], reference.projector(true[:, block].numpy(), false[:, block].numpy(), 3), atol=1e-9)
        values = torch.linalg.svdvals((true - false)[:, block] / 2)
        torch.testing.assert_close(found.singular_values[n], values)
        assert found.edges[n] == pytest.approx((float(values[2]), float(values[3])))


def test_centring_takes_the_main_direction_of_true_captions_out():
    true, false = draws(9, 2, 8) + 5, draws(9, 2, 8, seed=1)
    plain = mgap.NullSpace.from_states(true, false, 3, start=0)
    centred = mgap.NullSpace.from_states(true, false, 3, start=0, centring=1.0)
    first = torch.linalg.svd(true[:, 0], full_matrices=False).Vh[0]
    assert float((centred.bases[0] @ first).norm()) < 1e-9 < 0.5 < float((plain.bases[0] @ first).norm())


def test_pairs_that_do_not_differ_are_left_out_and_counted(model, pairs):
    same = replace(pairs[0], false=pairs[0].true)
    found = mgap.NullSpace.fit(model, [same, *pairs, same], 2)
    assert (found.count, found.dropped) == (5, 2)
    torch.testing.assert_close(found.projectors, mgap.NullSpace.fit(model, pairs, 2).projectors)
    true, false = draws(7, 2, 6), draws(7, 2, 6, seed=1)
    false[3] = true[3]
    few = mgap.NullSpace.from_states(true, false, 2)
    assert (few.count, few.dropped) == (6, 1)


def test_too_few_pairs_and_too_few_directions_are_refused(model, pairs):
    with pytest.raises(PromptError, match="5 pairs of captions that differ: rank 5 needs at least 6"):
        mgap.NullSpace.fit(model, pairs, 5)
    flat = draws(9, 2, 1) * draws(1, 2, 6, seed=1) + draws(9, 2, 1, seed=2) * draws(1, 2, 6, seed=3)
    with pytest.raises(DegenerateSubspace, match="differ in 2 directions, and rank 3"):
        mgap.NullSpace.from_states(flat, torch.zeros_like(flat), 3)
    with pytest.raises(NonFiniteStates):
        mgap.NullSpace.from_states(draws(9, 2, 6), draws(9, 2, 6, seed=1) / 0)


def test_the_upper_half_is_the_default_at_every_depth():
    assert [upper_blocks(depth) for depth in (32, 36, 6, 3)] == [range(16, 32), range(18, 36), range(3, 6), range(1, 3)]
    assert upper_blocks(32, 4, 6) == range(4, 6)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"rank": 0}, "rank"), ({"rank": "auto"}, "rank"), ({"start": 3}, "start=3"), ({"end": 4}, "end=4"),
     ({"start": 2, "end": 1}, "end=1"), ({"start": -1}, "start"), ({"preset": "code"}, "preset"),
     ({"centring": 2}, "centring")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(model, pairs, given, said):
    with pytest.raises(SettingError, match=said):
        mgap.NullSpace.fit(model, pairs, **given)


def test_states_that_are_no_pairs_are_refused():
    with pytest.raises(SettingError, match="two"):
        mgap.NullSpace.from_states(draws(9, 2, 6), draws(8, 2, 6))


def test_a_saved_one_comes_back_and_belongs_to_its_model(model, pairs, tmp_path):
    made = mgap.NullSpace.fit(model, pairs, 2)
    made.save(tmp_path)
    back = mgap.NullSpace.load(tmp_path)
    assert torch.equal(back.bases, made.bases)
    assert torch.equal(back.singular_values, made.singular_values)
    for name in ("start", "depth", "count", "dropped", "identity", "origin"):
        assert getattr(back, name) == getattr(made, name)
    back.require(model.backbone)
    other = replace(back, identity=replace(back.identity, sample=tuple(-x for x in back.identity.sample)))
    with pytest.raises(BackboneMismatch, match="weights differ"):
        other.require(model.backbone)
    with pytest.raises(BackboneMismatch, match="fit one"):
        replace(back, identity=None, depth=4).require(model.backbone)


def test_a_damaged_one_is_refused(tmp_path):
    mgap.NullSpace.from_states(draws(9, 2, 6), draws(9, 2, 6, seed=1), 2).save(tmp_path)
    path = tmp_path / "null_space.json"
    path.write_text(path.read_text().replace('"depth"', '"height"'))
    with pytest.raises(CorruptFile, match="fit it again"):
        mgap.NullSpace.load(tmp_path)


def test_fewer_directions_are_the_first_ones():
    found = mgap.NullSpace.from_states(draws(9, 2, 6), draws(9, 2, 6, seed=1), 3)
    assert torch.equal(found.truncate(2).bases, found.bases[:, :2])
    assert found.truncate(2).edges == [tuple(row[1:3].tolist()) for row in found.singular_values]
    with pytest.raises(SettingError, match="fit a larger one"):
        found.truncate(4)
