"""Saved tensors: what was saved comes back; what was damaged is refused, or comes back with the same tensors."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import mgap
from mgap.errors import CorruptFile
from mgap.priors.bank import Bank
from mgap.priors.prior_map import PriorMap
from mgap.priors.subspace import Subspace
from tests.fuzz.damage import Refused, all_damaged_numbers, cases, damaged_bytes, damaged_tensor, json_files, outcome
from tests.fuzz.saved import (
    IDENTITY,
    MADE,
    bank,
    change_tensor,
    is_valid,
    null_space,
    prior_map,
    same,
    steering,
    subspace,
    tensors,
)


@pytest.fixture(scope="module")
def saved(place):
    """Of each kind one, saved once; a test copies what it damages."""
    for kind, (make, _) in MADE.items():
        made = make()
        made.save(place / "saved" / kind, **({"per_part": 4} if kind == "bank" else {}))
    return place / "saved"


def copied(saved, kind):
    folder = saved.parent / "damaged" / kind
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(saved / kind, folder)


@cases(20)
@given(st.integers(0, 2**31), st.integers(1, 6), st.booleans(), st.sampled_from((torch.float32, torch.bfloat16, torch.float16)))
def test_what_was_saved_comes_back(place, seed, rank, known, dtype):
    made = subspace(seed, rank, IDENTITY if known else None)
    made.save(place / "again")
    back = outcome(Subspace.load, place / "again")  # which warns of one that names no model
    assert same(made, back)
    assert (back.identity, back.origin, back.tuning, back.count) == (made.identity, made.origin, made.tuning, made.count)
    for one in (steering(seed), prior_map(seed), bank(seed, dtype), null_space(seed)):
        one.save(place / "again")
        back = type(one).load(place / "again")
        assert same(one, back)
        assert (back.identity, back.origin) == (one.identity, one.origin)
        assert not isinstance(one, PriorMap) or (back.r2, back.ridge, back.count) == (one.r2, one.ridge, one.count)


@given(st.sampled_from(sorted(MADE)), st.data())
def test_a_changed_byte_of_the_tensors_is_refused(saved, kind, data):
    folder = copied(saved, kind)
    path = data.draw(st.sampled_from(sorted(folder.glob("*.safetensors"))))
    before = path.read_bytes()
    path.write_bytes(data.draw(damaged_bytes(before)))
    found = outcome(MADE[kind][1].load, folder, names=str(folder))
    if isinstance(found, Refused):
        assert isinstance(found.error, CorruptFile)
    else:
        assert path.read_bytes() == before
        assert same(found, MADE[kind][0]())


@given(st.sampled_from(sorted(MADE)), st.data())
def test_a_changed_description_never_changes_the_tensors(saved, kind, data):
    folder = copied(saved, kind)
    index = folder / f"{kind}.json"
    index.write_bytes(data.draw(st.one_of(damaged_bytes(index.read_bytes()), json_files(json.loads(index.read_text())))))
    found = outcome(MADE[kind][1].load, folder, names=str(folder))
    if isinstance(found, Refused):
        assert isinstance(found.error, CorruptFile)
    else:
        assert same(found, MADE[kind][0]())
        assert isinstance(found.origin, dict)
        if found.identity is not None:
            outcome(found.identity.require, IDENTITY, "it")
        if kind == "subspace":
            outcome(lambda: mgap.MGAP(found, preset="tuned"))
        found.save(folder)  # what was read can be written
        assert same(outcome(MADE[kind][1].load, folder), found)


@cases(40)
@given(st.sampled_from(sorted(MADE)), st.data())
def test_a_tensor_of_other_numbers_shape_or_dtype_is_refused_or_a_valid_one(saved, kind, data):
    """The file is whole, and its checksum is right: only what the numbers are can tell."""
    folder, kept = copied(saved, kind), MADE[kind][1]
    (path, *_) = sorted(folder.glob("*.safetensors"))
    name = data.draw(st.sampled_from(sorted(load_file(path))))
    change_tensor(folder, kind, name, lambda tensor: data.draw(damaged_tensor(tensor)))
    found = outcome(kept.load, folder, names=str(folder))
    if isinstance(found, Refused):
        assert isinstance(found.error, CorruptFile)
    else:
        assert all(tensor.isfinite().all() for tensor in tensors(found))
        assert is_valid(found)
        found.save(folder)
        assert same(kept.load(folder), found)


@pytest.mark.parametrize("kind", MADE)
def test_any_other_number_in_the_description_is_refused_or_a_valid_one(saved, kind):
    """All of them: there are few."""
    folder, made = copied(saved, kind), MADE[kind][0]()
    index = folder / f"{kind}.json"
    for changed in all_damaged_numbers(json.loads(index.read_text())):
        index.write_text(json.dumps(changed))
        found = outcome(MADE[kind][1].load, folder, names=str(folder))
        if isinstance(found, Refused):
            assert isinstance(found.error, CorruptFile)
        else:
            assert is_valid(found)
            assert same(found, made)


@pytest.mark.parametrize("kind", MADE)
def test_a_missing_folder_or_file_is_refused(saved, kind):
    folder = copied(saved, kind)
    for path in sorted(folder.glob("*.safetensors")):
        path.rename(folder / "elsewhere")
        with pytest.raises(CorruptFile):
            MADE[kind][1].load(folder)
        (folder / "elsewhere").rename(path)
    (folder / f"{kind}.json").unlink()
    with pytest.raises(CorruptFile, match=f"no saved {kind}"):
        MADE[kind][1].load(folder)


@cases(30)
@given(data=st.data())
def test_a_collection_goes_on_only_from_what_it_left(place, saved, data):
    """`bank-begun.json`, damaged: taken up as it was, or refused."""
    folder = copied(saved, "bank")
    begun = folder / "bank-begun.json"
    (folder / "bank.json").rename(begun)
    begun.write_bytes(data.draw(st.one_of(damaged_bytes(begun.read_bytes()), json_files(json.loads(begun.read_text())))))
    whole = bank()
    found = outcome(lambda: Bank.gather(whole.chunks(), identity=IDENTITY, folder=folder), names=str(folder))
    assert isinstance(found, Refused) or len(found) >= 9 - 4
