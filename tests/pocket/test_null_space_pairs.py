"""Pairs of captions of the pocket world, and what a null space fitted on them does to its models."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import mgap
from mgap.pocket.benchmark import DEVELOPMENT, FIT, TEST, scenes
from mgap.pocket.fit_null_space import caption_pairs, fit_null_space
from mgap.pocket.language import DESCRIBE, mentions
from mgap.pocket.scenes import render
from tests.reference.nullu import states


def test_a_pair_differs_in_one_thing_that_is_not_drawn():
    shown = {render(scene).tobytes(): scene for scene in scenes(DEVELOPMENT, 40)}
    pairs = list(caption_pairs(DEVELOPMENT, 40))
    assert len(pairs) > 20
    for pair in pairs:
        scene = shown[pair.image.tobytes()]
        true, false = mentions(pair.true), mentions(pair.false)
        assert set(true) <= set(scene.names)
        (lie,) = set(false) - set(true)
        assert lie not in scene.names
        assert sorted(false) == sorted([*true, lie])
        assert pair.true.count(". ") == pair.false.count(". ")
    again = [(pair.true, pair.false) for pair in caption_pairs(DEVELOPMENT, 40)]
    assert again == [(pair.true, pair.false) for pair in pairs]


def invented(model, method):
    """Things in captions of test scenes that are not drawn there."""
    shown = list(scenes(TEST, 40))
    with model.using(method):
        told = model.answers([render(s) for s in shown], [DESCRIBE[0]] * 40, batch_size=40, max_new_tokens=64)
        return sum(len(set(mentions(answer.text)) - set(scene.names)) for answer, scene in zip(told, shown, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", ["pocket/llava", "pocket/qwen3-vl"])
def test_the_directions_are_those_of_other_lies_too_and_without_them_no_more_is_invented(name):
    """With eight directions. With the published four more is invented on pocket/qwen3-vl: docs/methods/nullu.md."""
    model, seen = mgap.load(name, device="cpu", dtype="float32"), []
    space = fit_null_space(model, count=50, rank=8, progress=lambda *step: seen.append(step))
    assert seen[-1] == ("pairs of captions", space.count, space.count)
    drawn = torch.randn(space.bases.mT.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chance = replace(space, bases=torch.linalg.qr(drawn).Q.mT.contiguous())
    others = list(caption_pairs(FIT, 16))
    how = {"whole": False, "normed": False}
    true, false = (
        np.stack([states(model, pair.image, pair.prompt, getattr(pair, side), **how) for pair in others])
        for side in ("true", "false")
    )
    rows = torch.from_numpy(true - false)  # [N, L, d]
    for n, block in enumerate(space.blocks):
        along = {which: (rows[:, block] @ one.bases[n].T).norm() for which, one in (("fitted", space), ("chance", chance))}
        assert along["fitted"] > 2 * along["chance"]
    assert invented(model, mgap.Nullu(space=space)) <= invented(model, mgap.Nullu(space=space, strength=0.0))
