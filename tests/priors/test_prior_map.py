"""From a state to its blind twin's coordinates: the map finds what is linear, judges itself on whole pictures, and is kept."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mgap
from mgap.errors import BackboneMismatch, CorruptFile, DegenerateSubspace, NonFiniteStates, PromptError, SettingError
from mgap.priors.prior_map import FOLDS, RIDGES
from tests.reference.predicted_prior import ridge

WIDTH, RANK = 12, 3


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def space():
    return mgap.Subspace.from_states(drawn(40, WIDTH) + 2.0, rank=RANK)


def blind_of(coordinates, space, seed=7):
    """Blind states with these coordinates [n, K], and something else outside of the subspace."""
    other = drawn(len(coordinates), WIDTH, seed=seed)
    return space.mean + coordinates @ space.basis.T + other - other @ space.basis @ space.basis.T


@given(seed=st.integers(0, 1000))
def test_a_linear_map_is_found_and_explains_everything(space, seed):
    weight, offset, h = drawn(RANK, WIDTH, seed=seed), drawn(RANK, seed=seed + 1), drawn(80, WIDTH, seed=seed + 2) + 1.0
    found = mgap.PriorMap.from_states(h, blind_of(h @ weight.T + offset, space), space)
    torch.testing.assert_close(found.weight, weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.offset, offset, rtol=1e-5, atol=1e-5)
    assert found.r2 > 0.999999
    assert (found.count, found.ridge) == (80, RIDGES[0])


def test_noise_is_not_explained(space):
    found = mgap.PriorMap.from_states(drawn(400, WIDTH), blind_of(drawn(400, RANK, seed=1), space), space)
    assert abs(found.r2) < 0.05
    assert found.ridge == RIDGES[-1]


def test_half_of_it_noise_is_half_explained_and_some_ridge_helps(space):
    h = drawn(60, WIDTH)
    weight = drawn(RANK, WIDTH, seed=1) / WIDTH**0.5
    found = mgap.PriorMap.from_states(h, blind_of(h @ weight.T + drawn(60, RANK, seed=2), space), space)
    assert 0.2 < found.r2 < 0.7
    assert RIDGES[0] < found.ridge < RIDGES[-1]


@pytest.mark.parametrize("count", [8, 60], ids=["fewer states than dimensions", "more"])
def test_it_is_penalised_least_squares_written_out(space, count):
    h, blind = drawn(count, WIDTH) + 3.0, drawn(count, WIDTH, seed=1)
    found = mgap.PriorMap.from_states(h, blind, space)
    target = ((blind - space.mean) @ space.basis).numpy()
    weight, offset = ridge(h.numpy(), target, found.ridge)
    np.testing.assert_allclose(found.weight.numpy(), weight, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.offset.numpy(), offset, rtol=1e-6, atol=1e-8)
    errors = {share: left_out(h.numpy(), target, share) for share in RIDGES}
    assert found.ridge == min(errors, key=errors.get)
    assert found.r2 == pytest.approx(1 - errors[found.ridge], abs=1e-6)


def left_out(h, target, share):
    """What is missed of states left out, every fifth at a time, for one missed by the mean of the others."""
    missed = total = 0.0
    for fold in range(FOLDS):
        out = np.arange(len(h)) % FOLDS == fold
        weight, offset = ridge(h[~out], target[~out], share)
        missed += ((target[out] - h[out] @ weight.T - offset) ** 2).sum()
        total += ((target[out] - target[~out].mean(0)) ** 2).sum()
    return missed / total


def test_pictures_are_left_out_whole(space):
    """States of one picture are nearly the same, and its coordinates say nothing about another's: what a neighbour of the
    same picture tells would count as knowledge if single states were left out.
    """
    pictures = torch.arange(9).repeat(20)  # in turns, so that single states of one picture fall into every fold
    h = drawn(9, WIDTH)[pictures] + 1e-3 * drawn(180, WIDTH, seed=1)
    blind = blind_of(drawn(9, RANK, seed=2)[pictures], space)
    leaking, honest = (mgap.PriorMap.from_states(h, blind, space, rows) for rows in (None, pictures))
    assert leaking.r2 > 0.99
    assert honest.r2 < 0.5
    shuffled = torch.randperm(180, generator=torch.Generator().manual_seed(0))
    again = mgap.PriorMap.from_states(h[shuffled], blind[shuffled], space, pictures[shuffled].tolist())
    assert again.r2 == pytest.approx(honest.r2, abs=1e-9)


def test_the_scale_of_the_states_does_not_matter(space):
    h, blind = drawn(60, WIDTH), drawn(60, WIDTH, seed=1)
    one, other = (mgap.PriorMap.from_states(scale * h, blind, space) for scale in (1.0, 1000.0))
    assert (one.ridge, one.r2) == (other.ridge, pytest.approx(other.r2))
    torch.testing.assert_close(one.weight, other.weight * 1000.0)


def test_coordinates_that_never_vary_are_the_offset(space):
    found = mgap.PriorMap.from_states(drawn(30, WIDTH), (space.mean + space.basis[:, 0]).expand(30, WIDTH), space)
    torch.testing.assert_close(found.offset, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    assert found.weight.abs().max() < 1e-9


def test_float32_states_are_summed_in_float64(space):
    h, blind = drawn(60, WIDTH), drawn(60, WIDTH, seed=1)
    narrow = mgap.PriorMap.from_states(h.float().requires_grad_(), blind.float(), space)
    assert narrow.weight.dtype == narrow.offset.dtype == torch.float64
    assert not narrow.weight.requires_grad
    torch.testing.assert_close(narrow.weight, mgap.PriorMap.from_states(h, blind, space).weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("h", "blind", "rows", "error", "said"),
    [
        (drawn(4, WIDTH), drawn(4, WIDTH), None, PromptError, "pairs of 4 pictures are too few .* at least 5"),
        (drawn(9, WIDTH), drawn(9, WIDTH), [0] * 5 + [1] * 4, PromptError, "pairs of 2 pictures"),
        (drawn(0, WIDTH), drawn(0, WIDTH), None, PromptError, "pairs of 0 pictures"),
        (drawn(9, WIDTH), drawn(8, WIDTH), None, SettingError, r"\[9, 12\] and \[8, 12\]"),
        (drawn(9, WIDTH + 1), drawn(9, WIDTH + 1), None, SettingError, "prior of width 12"),
        (drawn(WIDTH), drawn(WIDTH), None, SettingError, r"must be \[n, d\]"),
        (drawn(9, WIDTH), drawn(9, WIDTH), [1, 2], SettingError, "for each of the 9 states"),
        (drawn(9, WIDTH).where(drawn(9, WIDTH) > -1, torch.nan), drawn(9, WIDTH), None, NonFiniteStates, "NaN"),
        (drawn(9, WIDTH), drawn(9, WIDTH) / 0.0, None, NonFiniteStates, "infinite"),
        (drawn(WIDTH).expand(9, WIDTH), drawn(9, WIDTH), None, DegenerateSubspace, "do not vary"),
    ],
)
def test_what_no_map_can_be_fitted_on_is_refused(space, h, blind, rows, error, said):
    with pytest.raises(error, match=said):
        mgap.PriorMap.from_states(h, blind, space, rows)


@pytest.mark.parametrize(
    ("weight", "offset", "said"),
    [
        (drawn(RANK, WIDTH - 1), drawn(RANK), r"a weight \[3, 12\] and an offset \[3\], not \[3, 11\]"),
        (drawn(RANK, WIDTH), drawn(RANK + 1), r"not \[3, 12\] and \[4\]"),
        (drawn(RANK, WIDTH) / 0.0, drawn(RANK), "finite"),
        (drawn(RANK, WIDTH), drawn(RANK) * torch.nan, "finite"),
    ],
)
def test_numbers_that_do_not_fit_the_prior_are_refused(space, weight, offset, said):
    with pytest.raises(SettingError, match=said):
        mgap.PriorMap(weight, offset, space, count=9, r2=0.0, ridge=1.0)


@pytest.fixture(scope="module")
def made(model, prior):
    """A map that belongs to a model."""
    h, blind = (drawn(30, prior.hidden_size, seed=seed) for seed in (0, 1))
    found = mgap.PriorMap.from_states(h, blind, prior)
    return replace(found, identity=prior.identity, origin={"null_image": "black_same_size"})


def test_a_saved_map_comes_back_whole_with_its_prior(made, model, tmp_path):
    made.save(tmp_path / "deep" / "map")
    back = mgap.PriorMap.load(tmp_path / "deep" / "map")
    assert torch.equal(back.weight, made.weight)
    assert torch.equal(back.offset, made.offset)
    for name in ("basis", "singular_values", "mean"):
        assert torch.equal(getattr(back.prior, name), getattr(made.prior, name))
    for name in ("count", "r2", "ridge", "identity", "origin"):
        assert getattr(back, name) == getattr(made, name)
    for name in ("count", "identity", "origin", "tuning", "total_variance"):
        assert getattr(back.prior, name) == getattr(made.prior, name)
    back.require(model.backbone)


def test_saving_over_an_old_map_leaves_only_the_new_one(made, tmp_path):
    made.save(tmp_path)
    replace(made, weight=made.weight + 1.0).save(tmp_path)
    torch.testing.assert_close(mgap.PriorMap.load(tmp_path).weight, made.weight + 1.0)
    assert len(list(tmp_path.iterdir())) == 2


def edit(folder, **changes):
    index = json.loads((folder / "prior_map.json").read_text())
    (folder / "prior_map.json").write_text(json.dumps({**index, **changes}))


def damage_tensors(folder):
    (file,) = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 0xFF
    file.write_bytes(data)


def cut_tensors(folder):
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:40])


@pytest.mark.parametrize(
    "damage",
    [
        damage_tensors,
        cut_tensors,
        lambda folder: (folder / "prior_map.json").write_text("{"),
        lambda folder: (folder / "prior_map.json").unlink(),
        lambda folder: edit(folder, tensors="../../etc/passwd"),
        lambda folder: edit(folder, format=99),
        lambda folder: edit(folder, prior={}),
        lambda folder: edit(folder, prior=3),
        lambda folder: edit(folder, ridge="wide"),
        lambda folder: edit(folder, model={"name": "x"}),
    ],
)
def test_a_damaged_map_is_refused(made, tmp_path, damage):
    made.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(CorruptFile, match=r"."):
        mgap.PriorMap.load(tmp_path)


def test_another_prior_in_the_file_is_refused(made, tmp_path):
    """Checksums cannot tell that somebody wrote a whole file that does not fit together."""
    object.__setattr__(made_up := replace(made), "weight", made.weight[:, 1:].contiguous())
    made_up.save(tmp_path)
    with pytest.raises(CorruptFile, match="not a saved prior map"):
        mgap.PriorMap.load(tmp_path)


def test_a_map_belongs_to_its_model(made, model):
    identity = replace(made.identity, sample=tuple(-x for x in made.identity.sample))
    with pytest.raises(BackboneMismatch, match=r"the prior map.*weights differ"):
        replace(made, identity=identity, prior=replace(made.prior, identity=None)).require(model.backbone)
    with pytest.raises(BackboneMismatch, match=r"the subspace.*weights differ"):
        replace(made, identity=None, prior=replace(made.prior, identity=identity)).require(model.backbone)


def test_a_map_of_bare_states_is_held_to_the_width(space, model):
    found = mgap.PriorMap.from_states(drawn(30, WIDTH), drawn(30, WIDTH, seed=1), space)
    with pytest.raises(BackboneMismatch, match="width 12"):
        found.require(model.backbone)
