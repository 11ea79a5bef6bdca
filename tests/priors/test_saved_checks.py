"""What is read from a saved object is what such an object holds, or it is refused with the file's name and what to do."""

import json

import pytest
import torch

from mgap.errors import CorruptFile
from mgap.priors.bank import Bank
from tests.fuzz.saved import MADE, change_tensor

NAN, INFINITE = torch.nan, torch.inf


def edit(folder, kind, *path, value):
    """Change one value of the description."""
    whole = index = json.loads((folder / f"{kind}.json").read_text())
    for key in path[:-1]:
        index = index[key]
    index[path[-1]] = value
    (folder / f"{kind}.json").write_text(json.dumps(whole))


def spoilt(value):
    """The tensor with one number changed."""

    def spoil(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return spoil


@pytest.mark.parametrize(
    ("kind", "name", "change", "told"),
    [
        ("subspace", "mean", spoilt(NAN), "mean holds NaN"),
        ("subspace", "mean", spoilt(INFINITE), "mean holds NaN, infinite"),
        ("subspace", "mean", lambda mean: mean[:-1], r"mean has the shape \[5\], not \[6\]"),
        ("subspace", "mean", lambda mean: mean.long(), "another kind than floating point"),
        ("subspace", "singular_values", spoilt(NAN), "singular_values holds NaN"),
        ("subspace", "singular_values", spoilt(-1.0), "singular values from -1 up"),
        ("subspace", "singular_values", lambda values: values[:1], "1 singular values"),
        ("subspace", "basis", lambda basis: basis[:1, :1, None], r"basis has the shape \[1, 1, 1\], not \[any, any\]"),
        ("subspace", "basis", lambda basis: basis[:0, :0], r"basis has the shape \[0, 0\]"),
        ("subspace", "basis", lambda basis: basis[:, :0], r"basis has the shape \[6, 0\]"),
        ("subspace", "basis", lambda basis: basis.T.contiguous(), r"mean has the shape \[6\], not \[2\]"),
        ("subspace", "basis", lambda basis: basis.to(torch.float8_e4m3fn), "another kind than floating point"),
        ("steering", "vectors", spoilt(NAN), "vectors holds NaN"),
        ("steering", "vectors", lambda vectors: vectors[0], r"vectors has the shape \[6\]"),
        ("null_space", "bases", spoilt(NAN), "bases holds NaN"),
        ("null_space", "bases", spoilt(3.0), "the bases are not orthonormal"),
        ("null_space", "bases", lambda bases: bases[0], r"bases has the shape \[2, 6\]"),
        ("null_space", "singular_values", spoilt(-1.0), "singular values from -1 up"),
        ("null_space", "singular_values", lambda values: values[:, :1], "1 singular values"),
        ("null_space", "singular_values", lambda values: values[:1], r"has the shape \[1, 6\], not \[2, any\]"),
        ("prior_map", "weight", spoilt(INFINITE), "weight holds NaN, infinite"),
        ("prior_map", "offset", lambda offset: offset[:-1], r"offset has the shape \[1\], not \[2\]"),
        ("prior_map", "prior.mean", spoilt(NAN), "mean holds NaN"),
        ("bank", "states", spoilt(NAN), "states hold NaN"),
        ("bank", "rows", spoilt(-1), "rows are not whole numbers"),
        ("bank", "rows", spoilt(77), "its last row is 77"),
        ("bank", "steps", spoilt(-1), "steps are not whole numbers"),
        ("bank", "tokens", lambda tokens: tokens.double(), "tokens are not whole numbers"),
    ],
)
def test_a_tensor_of_other_numbers_or_another_shape_is_refused(tmp_path, kind, name, change, told):
    MADE[kind][0]().save(tmp_path)
    change_tensor(tmp_path, kind, name, change)
    with pytest.raises(CorruptFile, match=rf"{tmp_path}: .*{told}.*; (fit|remove)"):
        MADE[kind][1].load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("subspace", ("count",), -5),
        ("subspace", ("count",), 0),
        ("subspace", ("count",), 10**400),
        ("subspace", ("rank",), 0),
        ("subspace", ("total_variance",), NAN),
        ("subspace", ("total_variance",), -1.0),
        ("subspace", ("model", "hidden_size"), 7),
        ("subspace", ("model", "vocab_size"), -(10**400)),
        ("subspace", ("model", "sample", 0), NAN),
        ("subspace", ("model", "tensors"), {"lm_head.weight": "nothing"}),
        ("steering", ("counts", 1), 0),
        ("null_space", ("count",), 0),
        ("null_space", ("dropped",), -1),
        ("null_space", ("start",), 3),
        ("null_space", ("depth",), 3),
        ("prior_map", ("r2",), NAN),
        ("prior_map", ("r2",), 1.5),
        ("prior_map", ("ridge",), -1.0),
        ("prior_map", ("count",), -1),
        ("prior_map", ("prior", "count"), -5),
        ("bank", ("rows",), 4),
        ("bank", ("model", "hidden_size"), 7),
    ],
)
def test_a_number_out_of_range_is_refused(tmp_path, kind, path, value):
    MADE[kind][0]().save(tmp_path)
    edit(tmp_path, kind, *path, value=value)
    with pytest.raises(CorruptFile, match=rf"{tmp_path}.*; (fit|remove)"):
        MADE[kind][1].load(tmp_path)


@pytest.mark.parametrize("kind", ["subspace", "steering", "prior_map", "bank", "null_space"])
def test_what_names_no_model_is_told_when_it_is_loaded(tmp_path, kind):
    MADE[kind][0]().save(tmp_path)
    edit(tmp_path, kind, "model", value=None)
    if kind == "prior_map":
        edit(tmp_path, kind, "prior", "model", value=None)
    with pytest.warns(UserWarning, match=f"{tmp_path}: names no model, so nothing but its width is compared") as told:
        loaded = MADE[kind][1].load(tmp_path)
    assert len(told) == 1
    assert loaded.identity is None


def test_an_unfinished_bank_with_another_number_of_rows_is_not_continued(tmp_path):
    whole = MADE["bank"][0]()
    whole.save(tmp_path)
    edit(tmp_path, "bank", "rows", value=9)
    (tmp_path / "bank.json").rename(tmp_path / "bank-begun.json")
    with pytest.raises(CorruptFile, match="its last row is 4, and its index says that there are 9"):
        Bank.gather(whole.chunks(), identity=whole.identity, folder=tmp_path)


SHOWN = {
    "subspace": "<Subspace of org/model: rank 2 of 6, 12 prompts, black336, 62.7% of their variance, tuned>",
    "steering": "<Steering of org/model: 3 blocks of width 6, 4 factual and 5 hallucinated tokens>",
    "null_space": "<NullSpace of org/model: rank 2 of 6 in blocks 2 to 3 of 4, 7 pairs of captions>",
    "bank": "<Bank of org/model: 9 states of width 6>",
}


@pytest.mark.parametrize("kind", MADE)
def test_printed_it_says_in_a_line_or_two_what_it_is_and_of_which_model(kind):
    made, _ = MADE[kind]
    printed = repr(made())
    assert len(printed) <= 200
    assert "tensor(" not in printed
    assert "\n" not in printed
    if kind in SHOWN:
        assert printed == SHOWN[kind]
    else:
        assert printed.endswith(f"to {made().prior!r}>")


def test_printed_without_a_model_it_says_that_it_was_made_of_bare_states():
    assert repr(Bank.of(torch.randn(5, 8))) == "<Bank of bare states: 5 states of width 8>"
